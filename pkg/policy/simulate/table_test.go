package simulate

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, a := range texts {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// village has a pod that only app=a may reach, and a host that declares a port.
func village() Sketch {
	a := is("app", "a")
	p := &types.Policy{Resource: types.Resource{Kind: "P", Namespace: "x", Name: "b"}, Subject: is("app", "b"), IsolatesIngress: true, IsolatesEgress: true}
	p.Rules = []types.Rule{{Ref: types.RuleRef{Resource: p.Resource, Section: "ingress"}, Verdict: types.Allow, Peers: []types.Peer{{Labels: &a}},
		Ports: []types.Port{{Proto: wtypes.ProtoTCP, Name: "web"}}}}
	web := Port{Name: "web", Proto: wtypes.ProtoTCP, Port: 80}
	return Sketch{
		Cluster: "default", Policies: []*types.Policy{p}, Namespaces: map[string]map[string]string{"x": {"team": "x"}},
		Pods: []SketchedPod{
			{Namespace: "x", Name: "a", Labels: map[string]string{"app": "a"}, Ports: []Port{web}},
			{Namespace: "x", Name: "b", Labels: map[string]string{"app": "b"}, Ports: []Port{web, {Name: "alias", Proto: wtypes.ProtoTCP, Port: 80}, {Proto: wtypes.ProtoUDP, Port: 53}}},
			{Namespace: "x", Name: "c", Addrs: addrs("10.77.0.2")},
		},
		Hosts: []SketchedHost{{Host: Host{Name: "out", Addrs: addrs("192.0.2.1")}, Ports: []Port{web}}},
	}
}

func build(t *testing.T, s Sketch) *Cluster {
	t.Helper()
	w, err := s.World()
	require.NoError(t, err)
	c, err := New(w, nil)
	require.NoError(t, err)
	return c
}

func TestASketchGetsAddressesThatNobodyHas(t *testing.T) {
	w, err := village().World()
	require.NoError(t, err)
	require.Equal(t, addrs("10.77.0.3", "fd00:77::2"), w.Pods[0].Addrs)
	require.Equal(t, addrs("10.77.0.4", "fd00:77::3"), w.Pods[1].Addrs)
	require.Equal(t, addrs("10.77.0.2"), w.Pods[2].Addrs)
	require.Equal(t, NodeName, w.Hosts[1].Name)
	require.Equal(t, addrs("10.77.0.1", "fd00:77::1"), w.Hosts[1].Addrs)
	require.True(t, w.Hosts[1].Labels.HasReserved(labels.NameHost))
	for key, want := range map[string]string{labels.KeyNamespaceLabels + ".team": "x", labels.KeyCluster: "default", labels.KeyPodNamespace: "x"} {
		got, _ := w.Pods[0].Labels.Get(labels.SourceK8s, key)
		require.Equal(t, want, got, key)
	}

	s := village()
	s.Pods[2].Addrs = addrs("10.77.0.1")
	_, err = s.World()
	require.ErrorContains(t, err, "10.77.0.1 is the address of the node")
	s.Hosts = append(s.Hosts, SketchedHost{Host: Host{Name: NodeName, Addrs: addrs("192.0.2.9"), Labels: labels.NewLabelArray(labels.Reserved(labels.NameHost))}})
	_, err = s.World()
	require.NoError(t, err, "a node of its own has its own address")

	s = village()
	s.Pods = nil
	for range 1<<16 - 2 { // all of the pool but its own address and the node's
		s.Pods = append(s.Pods, SketchedPod{Namespace: "x", Name: "p"})
	}
	_, err = s.World()
	require.NoError(t, err)
	s.Pods = append(s.Pods, SketchedPod{Namespace: "x", Name: "p"})
	_, err = s.World()
	require.ErrorContains(t, err, "more pods without an address than 10.77.0.0/16 has")
}

func TestATableHasARowPerSourceAndAColumnPerDeclaredPort(t *testing.T) {
	s := village()
	c := build(t, s)
	tables, err := c.Tables(s.Ports(), "")
	require.NoError(t, err)
	require.Equal(t, []Table{
		{"IPv4", []string{"x/a:80/TCP", "x/b:80/TCP", "x/b:53/UDP", "out:80/TCP"}, []Row{
			{"x/a", []string{"-", ".", "I", "."}}, {"x/b", []string{"E", "-", "-", "E"}}, {"x/c", []string{".", "I", "I", "."}},
			{"out", []string{".", "I", "I", "-"}}, {"node", []string{".", ".", ".", "-"}}}},
		{"IPv6", []string{"x/a:80/TCP", "x/b:80/TCP", "x/b:53/UDP"}, []Row{
			{"x/a", []string{"-", ".", "I"}}, {"x/b", []string{"E", "-", "-"}}, {"node", []string{".", ".", "."}}}},
	}, tables)

	tables, err = c.Tables(s.Ports(), "x/b")
	require.NoError(t, err)
	require.Equal(t, []Row{{"x/a", []string{"-", ".", "I", "-"}}, {"x/b", []string{"E", "-", "-", "E"}}, {"x/c", []string{"-", "I", "I", "-"}},
		{"out", []string{"-", "I", "I", "-"}}, {"node", []string{"-", ".", ".", "-"}}}, tables[0].Rows)
	tables, err = c.Tables(s.Ports(), "x/c")
	require.NoError(t, err)
	require.Equal(t, Table{"IPv4", []string{"x/a:80/TCP", "x/b:80/TCP", "x/b:53/UDP", "out:80/TCP"}, []Row{{"x/c", []string{".", "I", "I", "."}}}}, tables[0])
	require.Empty(t, tables[1].Rows)
}

func TestADifferenceNamesPairsRulesAndIsolation(t *testing.T) {
	old, now := village(), village()
	open := *now.Policies[0]
	open.IsolatesEgress = false
	open.Rules = append(slices.Clone(open.Rules), types.Rule{Ref: types.RuleRef{Resource: open.Resource, Section: "ingressDeny"}, Verdict: types.Deny, Peers: open.Rules[0].Peers})
	now.Policies = []*types.Policy{&open, {Resource: types.Resource{Kind: "P", Namespace: "x", Name: "c"}, Subject: is("app", "a"), IsolatesIngress: true}}
	now.Pods = append(now.Pods[:2:2], SketchedPod{Namespace: "x", Name: "d"})
	d, err := Diff(build(t, old), build(t, now), now.Ports(), "")
	require.NoError(t, err)
	require.Equal(t, []string{"x/c"}, d.Gone)
	require.Equal(t, []string{"x/d"}, d.Came)
	require.Equal(t, []IsolationChange{
		{"x/a", types.Ingress, true, []types.Resource{{Kind: "P", Namespace: "x", Name: "c"}}},
		{"x/b", types.Egress, false, []types.Resource{open.Resource}}}, d.Isolations)
	var got []string
	for _, p := range d.Pairs {
		got = append(got, p.From+" "+p.To+" "+p.Old.Verdict.String()+" "+p.New.String())
	}
	require.Equal(t, []string{
		"x/a x/b allow deny by P x/b ingressDeny[0]",
		"x/b out deny allow by default allow, because no policy selects the pod in this direction",
		"out x/a allow deny by default deny, because the pod is selected by P x/c",
	}, got, "x/b to x/a is denied before and after, by another end")
	require.Equal(t, []string{"IPv4", "IPv6"}, d.Pairs[0].Families)
	require.Equal(t, []string{"IPv4"}, d.Pairs[1].Families)
	require.False(t, d.Empty())

	same, err := Diff(build(t, old), build(t, old), old.Ports(), "")
	require.NoError(t, err)
	require.True(t, same.Empty())
}

// Where two sets of policies differ on any port at all, they differ on one that
// NamedByRules lists.
func TestTheListedPortsStandForAllOthers(t *testing.T) {
	ports := rapid.Custom(func(t *rapid.T) types.Port {
		p := types.Port{Proto: wtypes.ProtoTCP, Port: rapid.Uint16Range(0, 12).Draw(t, "first")}
		if p.Port != 0 && rapid.Bool().Draw(t, "range") {
			p.End = rapid.Uint16Range(p.Port, 13).Draw(t, "last")
		}
		return p
	})
	rapid.Check(t, func(t *rapid.T) {
		draw := func() (Sketch, []*types.Policy) {
			s := village()
			p := &types.Policy{Resource: types.Resource{Kind: "P", Name: "q"}, Subject: is("app", "a"), IsolatesIngress: true}
			for i, v := range []types.Verdict{types.Allow, types.Deny, types.Allow} {
				p.Rules = append(p.Rules, types.Rule{Ref: types.RuleRef{Resource: p.Resource, Section: "r", Index: i}, Verdict: v,
					Ports: rapid.SliceOfN(ports, 0, 2).Draw(t, "ports")})
			}
			s.Policies = []*types.Policy{p}
			return s, s.Policies
		}
		a, oldPolicies := draw()
		b, newPolicies := draw()
		old, now := clusterOf(t, a), clusterOf(t, b)
		differ := func(p Port) bool {
			was, _, err := old.outcome("x/b", "x/a", p, true)
			if err != nil {
				t.Fatal(err)
			}
			is, _, err := now.outcome("x/b", "x/a", p, true)
			if err != nil {
				t.Fatal(err)
			}
			return was.Verdict != is.Verdict
		}
		somewhere := false
		for n := uint16(1); n < 20; n++ {
			somewhere = somewhere || differ(Port{Proto: wtypes.ProtoTCP, Port: n})
		}
		if found := slices.ContainsFunc(NamedByRules(oldPolicies, newPolicies), differ); found != somewhere {
			t.Fatalf("they differ somewhere: %v, on the listed ports: %v", somewhere, found)
		}
	})
}

func TestICMPIsAskedInItsFamily(t *testing.T) {
	old, now := village(), village()
	echo := *now.Policies[0]
	echo.Rules = append(slices.Clone(echo.Rules), types.Rule{Ref: types.RuleRef{Resource: echo.Resource, Section: "ingress", Index: 1}, Verdict: types.Allow,
		Ports: []types.Port{{Proto: wtypes.ProtoICMP, Port: 0, ICMPType: true}, {Proto: wtypes.ProtoICMPv6, Port: 128, ICMPType: true}}})
	now.Policies = []*types.Policy{&echo}
	listed := NamedByRules(old.Policies, now.Policies)
	d, err := Diff(build(t, old), build(t, now), func(string) []Port { return listed }, "")
	require.NoError(t, err)
	var got []string
	for _, p := range d.Pairs {
		if p.From == "x/a" {
			got = append(got, p.To+" "+p.Proto.String()+" "+p.Families[0])
		}
	}
	require.Equal(t, []string{"x/b ICMP IPv4", "x/b ICMPv6 IPv6"}, got)
}

func clusterOf(t *rapid.T, s Sketch) *Cluster {
	t.Helper()
	w, err := s.World()
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(w, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
