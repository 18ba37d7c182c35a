package suggest_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/suggest"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// actor is somebody who talks.
type actor struct {
	name   string
	addr   netip.Addr
	labels labels.LabelArray
	pod    bool
}

func podActor(i int, ns string, ls map[string]string) actor {
	p := labels.Pod{Namespace: ns, Cluster: "default", Labels: ls}
	return actor{fmt.Sprintf("p%d", i), netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), labels.PodLabels(p), true}
}

func others() []actor {
	addr := netip.MustParseAddr
	return []actor{
		{"web1", addr("203.0.113.1"), labels.NewLabelArray(labels.Reserved(labels.NameWorldIPv4)), false},
		{"web2", addr("203.0.113.2"), labels.NewLabelArray(labels.Reserved(labels.NameWorldIPv4)), false},
		{"there", addr("192.0.2.2"), labels.NewLabelArray(labels.Reserved(labels.NameRemoteNode)), false},
		{"here", addr("192.0.2.1"), labels.NewLabelArray(labels.Reserved(labels.NameHost)), false},
	}
}

// world is the actors as the oracle sees them.
func world(actors []actor) *oracle.World {
	w := &oracle.World{}
	for _, a := range actors {
		switch {
		case a.pod:
			w.Pods = append(w.Pods, oracle.Pod{Name: a.name, Labels: a.labels, Addrs: []netip.Addr{a.addr}})
		case !a.labels.HasWorld():
			w.Nodes = append(w.Nodes, oracle.Node{Name: a.name, Local: a.labels.HasReserved(labels.NameHost), Addrs: []netip.Addr{a.addr}})
		}
	}
	return w
}

type talk struct {
	from, to actor
	proto    wtypes.Proto
	port     uint16
}

func (k talk) event(dir gen.Direction, v gen.Verdict) gen.Event {
	peer := func(a actor, port uint16) gen.EventPeer {
		return gen.EventPeer{IP: a.addr.String(), Port: port, Labels: a.labels.Strings()}
	}
	if k.proto.IsICMP() {
		e := gen.Event{Type: gen.EventVerdict, Verdict: v, Direction: dir, Proto: k.proto.String(), IcmpType: uint8(k.port)}
		e.Source, e.Destination = peer(k.from, 0), peer(k.to, 0)
		return e
	}
	return gen.Event{Type: gen.EventVerdict, Verdict: v, Direction: dir, Proto: k.proto.String(), Source: peer(k.from, 40000), Destination: peer(k.to, k.port)}
}

func translate(t require.TestingT, objects []k8s.Object) []*types.Policy {
	var out []*types.Policy
	for _, o := range objects {
		ps, err := k8s.Translate(o, k8s.Options{ClusterName: "default"})
		require.NoError(t, err, "%s", o.Resource)
		out = append(out, ps...)
	}
	return out
}

// The suggestion for flows of a random world allows every one of them and
// nothing that was not recorded, wherever a direction was judged: for two pods
// with the same labels what one of them did counts for both.
func TestSuggestionsAllowWhatWasRecordedAndNothingElse(t *testing.T) {
	denied := 0
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"", k8s.KindNetworkPolicy, api.KindNamespaced}).Draw(t, "kind")
		var actors []actor
		for i := range rapid.IntRange(2, 5).Draw(t, "pods") {
			ls := map[string]string{}
			for _, k := range []string{"app", "tier"} {
				if v := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, k); v != "" {
					ls[k] = v
				}
			}
			ns := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespace")
			actors = append(actors, podActor(i, ns, ls))
		}
		actors = append(actors, others()...)
		ports := []uint16{80, 81, 8080}
		protos := []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP}
		var all []talk
		for _, from := range actors {
			for _, to := range actors {
				if from.name == to.name || !from.pod && !to.pod {
					continue
				}
				for _, proto := range protos {
					for _, port := range ports {
						all = append(all, talk{from, to, proto, port})
					}
				}
				if kind != k8s.KindNetworkPolicy { // which has no types of ICMP
					all = append(all, talk{from, to, wtypes.ProtoICMP, 0}, talk{from, to, wtypes.ProtoICMP, 8})
				}
			}
		}
		// Every pod of the world is seen at least once, by a flow that is recorded.
		var events []gen.Event
		allowed, judged := map[string]bool{}, map[string]bool{}
		key := func(k talk) string {
			id := func(a actor) string {
				if a.pod {
					return a.labels.Key()
				}
				return a.addr.String()
			}
			return fmt.Sprint(id(k.from), id(k.to), k.proto, k.port)
		}
		for i := range actors {
			if !actors[i].pod {
				continue
			}
			n := rapid.IntRange(1, 4).Draw(t, "flows")
			for range n {
				mine := slices.DeleteFunc(slices.Clone(all), func(k talk) bool { return k.from.name != actors[i].name && k.to.name != actors[i].name })
				k := rapid.SampledFrom(mine).Draw(t, "flow")
				if k.from.pod {
					events = append(events, k.event(gen.DirectionEgress, gen.VerdictAllow))
					judged[k.from.labels.Key()+" egress"] = true
				}
				if k.to.pod && (!k.from.pod || rapid.Bool().Draw(t, "destination judges too")) {
					events = append(events, k.event(gen.DirectionIngress, gen.VerdictAllow))
					judged[k.to.labels.Key()+" ingress"] = true
				}
				allowed[key(k)] = true
			}
		}
		r, err := suggest.From(events, suggest.Options{Kind: kind})
		require.NoError(t, err)
		policies := translate(t, r.Objects)
		w := world(actors)
		for _, k := range all {
			v := oracle.Judge(w, policies, types.ModeDefault, oracle.Connection{Src: k.from.addr, Dst: k.to.addr, Proto: k.proto, Port: k.port})
			recorded := allowed[key(k)]
			free := !(k.from.pod && judged[k.from.labels.Key()+" egress"]) &&
				(!(k.to.pod && judged[k.to.labels.Key()+" ingress"]) || k.from.name == "here")
			if want := recorded || free; v.Allowed() != want {
				t.Fatalf("%s -> %s %s/%d: allowed %v, want %v\n%+v", k.from.name, k.to.name, k.proto, k.port, v.Allowed(), want, r.Objects)
			}
			if !v.Allowed() {
				denied++
			}
		}
	})
	require.Positive(t, denied, "nothing was ever denied, so the test says nothing")
}

func TestManyPortsFitTheLists(t *testing.T) {
	a, b := podActor(0, "x", map[string]string{"app": "a"}), podActor(1, "x", map[string]string{"app": "b"})
	var events []gen.Event
	for port := range uint16(100) {
		events = append(events, talk{a, b, wtypes.ProtoTCP, 1000 + port}.event(gen.DirectionEgress, gen.VerdictAllow),
			talk{a, b, wtypes.ProtoICMPv6, port}.event(gen.DirectionEgress, gen.VerdictAllow))
	}
	r, err := suggest.From(events, suggest.Options{Kind: api.KindNamespaced})
	require.NoError(t, err)
	policies := translate(t, r.Objects)
	for port := range uint16(110) {
		for _, q := range []talk{{a, b, wtypes.ProtoTCP, 1000 + port}, {a, b, wtypes.ProtoICMPv6, port}} {
			v := oracle.Judge(world([]actor{a, b}), policies, types.ModeDefault, oracle.Connection{Src: a.addr, Dst: b.addr, Proto: q.proto, Port: q.port})
			require.Equal(t, port < 100, v.Allowed(), "%s %d", q.proto, q.port)
		}
	}
}

// A NetworkPolicy has no types of ICMP: what is asked for as one allows more, and says so.
func TestICMPInANetworkPolicyIsNoted(t *testing.T) {
	a, b := podActor(0, "x", map[string]string{"app": "a"}), podActor(1, "x", map[string]string{"app": "b"})
	r, err := suggest.From([]gen.Event{talk{a, b, wtypes.ProtoICMP, 8}.event(gen.DirectionEgress, gen.VerdictAllow)}, suggest.Options{Kind: k8s.KindNetworkPolicy})
	require.NoError(t, err)
	require.Len(t, r.Notes, 1)
	v := oracle.Judge(world([]actor{a, b}), translate(t, r.Objects), types.ModeDefault, oracle.Connection{Src: a.addr, Dst: b.addr, Proto: wtypes.ProtoICMP, Port: 8})
	require.True(t, v.Allowed())
}

func TestAFlowThatOneEndDeniedIsNotAllowed(t *testing.T) {
	a, b := podActor(0, "x", map[string]string{"app": "a"}), podActor(1, "x", map[string]string{"app": "b"})
	k := talk{a, b, wtypes.ProtoTCP, 80}
	r, err := suggest.From([]gen.Event{k.event(gen.DirectionEgress, gen.VerdictAllow), k.event(gen.DirectionIngress, gen.VerdictDeny)}, suggest.Options{})
	require.NoError(t, err)
	require.Len(t, r.Objects, 2)
	v := oracle.Judge(world([]actor{a, b}), translate(t, r.Objects), types.ModeDefault, oracle.Connection{Src: a.addr, Dst: b.addr, Proto: k.proto, Port: 80})
	require.Equal(t, types.Deny, v.Egress.Verdict)
	require.Equal(t, types.Deny, v.Ingress.Verdict)
}

// The local node may always reach its pods, so that it needs no rule.
func TestTheLocalNodeNeedsNoRule(t *testing.T) {
	a := podActor(0, "x", map[string]string{"app": "a"})
	r, err := suggest.From([]gen.Event{talk{others()[3], a, wtypes.ProtoTCP, 80}.event(gen.DirectionIngress, gen.VerdictAllow)}, suggest.Options{})
	require.NoError(t, err)
	policies := translate(t, r.Objects)
	require.Len(t, policies, 1)
	require.True(t, policies[0].IsolatesIngress)
	require.Empty(t, policies[0].Rules)
}

// A drop by a policy is a verdict like any other; other drops say nothing.
func TestDropsByPolicyAreVerdicts(t *testing.T) {
	a, b := podActor(0, "x", map[string]string{"app": "a"}), podActor(1, "x", map[string]string{"app": "b"})
	k := talk{a, b, wtypes.ProtoTCP, 80}
	dropped := k.event(gen.DirectionIngress, gen.VerdictDeny)
	dropped.Type = gen.EventDrop
	for reason, allowed := range map[string]bool{"policy-deny": false, "policy-default-deny": false, drop.FragNotFound.String(): true} {
		dropped.Reason = reason
		r, err := suggest.From([]gen.Event{k.event(gen.DirectionEgress, gen.VerdictAllow), dropped}, suggest.Options{})
		require.NoError(t, err)
		v := oracle.Judge(world([]actor{a, b}), translate(t, r.Objects), types.ModeDefault, oracle.Connection{Src: a.addr, Dst: b.addr, Proto: k.proto, Port: k.port})
		require.Equal(t, allowed, v.Egress.Verdict == types.Allow, reason)
		require.Equal(t, allowed, v.Ingress.Verdict == types.Allow, reason)
	}
}

// Audit, then suggest: what a policy denied and audit mode let through is allowed
// and noted, unless the other end denied it.
func TestWhatPassedInAuditModeIsAllowed(t *testing.T) {
	a, b := podActor(0, "x", map[string]string{"app": "a"}), podActor(1, "x", map[string]string{"app": "b"})
	k := talk{a, b, wtypes.ProtoTCP, 80}
	audit := k.event(gen.DirectionIngress, gen.VerdictDeny)
	audit.Type, audit.Reason = gen.EventAudit, drop.Policy.String()
	for other, allowed := range map[gen.Verdict]bool{gen.VerdictAllow: true, gen.VerdictDeny: false} {
		for _, events := range [][]gen.Event{{k.event(gen.DirectionEgress, other), audit}, {audit, k.event(gen.DirectionEgress, other)}} {
			r, err := suggest.From(events, suggest.Options{})
			require.NoError(t, err)
			require.Len(t, r.Objects, 2)
			require.Len(t, r.Notes, 1)
			require.Contains(t, r.Notes[0], "audit")
			v := oracle.Judge(world([]actor{a, b}), translate(t, r.Objects), types.ModeDefault, oracle.Connection{Src: a.addr, Dst: b.addr, Proto: k.proto, Port: k.port})
			require.Equal(t, allowed, v.Allowed(), "egress %s", other)
		}
	}
}

func TestTheOrderOfEventsChangesNothing(t *testing.T) {
	a, b := podActor(0, "x", map[string]string{"app": "a"}), podActor(1, "y", map[string]string{"app": "b"})
	var events []gen.Event
	for _, k := range []talk{{a, b, wtypes.ProtoTCP, 80}, {a, b, wtypes.ProtoUDP, 53}, {b, a, wtypes.ProtoTCP, 443}, {others()[0], b, wtypes.ProtoTCP, 80}} {
		events = append(events, k.event(gen.DirectionIngress, gen.VerdictAllow))
	}
	first, err := suggest.From(events, suggest.Options{})
	require.NoError(t, err)
	slices.Reverse(events)
	second, err := suggest.From(events, suggest.Options{})
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestManyAddressesBecomeTheWorld(t *testing.T) {
	a := podActor(0, "x", map[string]string{"app": "a"})
	var events []gen.Event
	for i := range 5 {
		o := others()[0]
		o.addr = netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
		events = append(events, talk{o, a, wtypes.ProtoTCP, 443}.event(gen.DirectionIngress, gen.VerdictAllow))
	}
	far := netip.MustParseAddr("198.51.100.1")
	for limit, want := range map[int]bool{5: false, 4: true} {
		r, err := suggest.From(events, suggest.Options{MaxAddresses: limit})
		require.NoError(t, err)
		v := oracle.Judge(world([]actor{a}), translate(t, r.Objects), types.ModeDefault, oracle.Connection{Src: far, Dst: a.addr, Proto: wtypes.ProtoTCP, Port: 443})
		require.Equal(t, want, v.Allowed())
		require.Equal(t, want, len(r.Notes) == 1, "what is widened is noted")
	}
}

func TestWhatIsNoVerdictIsLeftOutAndNoted(t *testing.T) {
	r, err := suggest.From([]gen.Event{{Type: gen.EventLost, Lost: 3}}, suggest.Options{})
	require.NoError(t, err)
	require.Empty(t, r.Objects)
	require.Len(t, r.Notes, 1)

	k := talk{others()[0], podActor(0, "x", nil), wtypes.ProtoTCP, 80}
	good, strange, nowhere, zero := k.event(gen.DirectionIngress, gen.VerdictAllow), k.event(gen.DirectionIngress, "perhaps"), k.event("sideways", gen.VerdictAllow), k
	zero.port = 0
	r, err = suggest.From([]gen.Event{good, strange, nowhere, zero.event(gen.DirectionIngress, gen.VerdictAllow)}, suggest.Options{})
	require.NoError(t, err)
	require.Len(t, r.Notes, 1)
	require.Contains(t, r.Notes[0], "3 events")
	only, err := suggest.From([]gen.Event{good}, suggest.Options{})
	require.NoError(t, err)
	require.Equal(t, only.Objects, r.Objects)
}

func TestSuggestRefuses(t *testing.T) {
	_, err := suggest.From(nil, suggest.Options{Kind: "Ingress"})
	require.ErrorContains(t, err, "Ingress")
	bad := talk{others()[0], podActor(0, "x", nil), wtypes.ProtoTCP, 80}.event(gen.DirectionIngress, gen.VerdictAllow)
	bad.Source.IP = "nowhere"
	_, err = suggest.From([]gen.Event{bad}, suggest.Options{})
	require.ErrorContains(t, err, "nowhere")
	require.True(t, strings.Contains(err.Error(), "event 1"), err)
	bad.Source = gen.EventPeer{Labels: []string{"k8s:io.kubernetes.pod.namespace="}}
	_, err = suggest.From([]gen.Event{bad}, suggest.Options{})
	require.ErrorContains(t, err, "are no pod's")
	odd := talk{podActor(1, "x", map[string]string{"app": "a b"}), podActor(0, "x", nil), wtypes.ProtoTCP, 80}
	_, err = suggest.From([]gen.Event{odd.event(gen.DirectionIngress, gen.VerdictAllow)}, suggest.Options{})
	require.ErrorContains(t, err, "a policy that is not valid")
}
