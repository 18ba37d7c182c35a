package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func genSelector(t *rapid.T) metav1.LabelSelector {
	s := metav1.LabelSelector{}
	if v := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "app"); v != "" {
		s.MatchLabels = map[string]string{"app": v}
	}
	if op := rapid.SampledFrom([]metav1.LabelSelectorOperator{"", "", "Exists", "DoesNotExist", "NotIn", "In"}).Draw(t, "operator"); op != "" {
		r := metav1.LabelSelectorRequirement{Key: "tier", Operator: op}
		if op == "NotIn" || op == "In" {
			r.Values = rapid.SampledFrom([][]string{{"x"}, {"y"}, {"x", "y"}}).Draw(t, "values")
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	if rapid.IntRange(0, 3).Draw(t, "other namespace") == 0 {
		if s.MatchLabels == nil {
			s.MatchLabels = map[string]string{}
		}
		s.MatchLabels["k8s:"+labels.KeyPodNamespace] = "ops"
	}
	return s
}

func genPeers(t *rapid.T) api.IngressPeers {
	switch rapid.IntRange(0, 4).Draw(t, "peers") {
	case 0:
		return api.IngressPeers{}
	case 1:
		return api.IngressPeers{FromEntities: []string{rapid.SampledFrom([]string{"all", "world", "cluster", "host", "world-ipv4"}).Draw(t, "entity")}}
	case 2:
		c := api.CIDRRule{CIDR: rapid.SampledFrom([]string{"0.0.0.0/0", "203.0.113.0/24", "203.0.113.0/25", "203.0.113.128/25"}).Draw(t, "cidr")}
		if c.CIDR != "203.0.113.128/25" && rapid.Bool().Draw(t, "except") {
			c.Except = []string{"203.0.113.0/26"}
		}
		return api.IngressPeers{FromCIDRSet: []api.CIDRRule{c}}
	}
	out := []metav1.LabelSelector{genSelector(t)}
	if rapid.Bool().Draw(t, "two") {
		out = append(out, genSelector(t))
	}
	return api.IngressPeers{FromEndpoints: out}
}

func genPorts(t *rapid.T) []api.PortRule {
	p := rapid.SampledFrom([]api.PortProtocol{{}, {}, {Port: "80", Protocol: "TCP"}, {Port: "80"}, {Port: "http", Protocol: "TCP"},
		{Port: "8080", Protocol: "TCP"}, {Port: "78", EndPort: 82, Protocol: "TCP"}, {Port: "0", Protocol: "TCP"},
		{Port: "65535", Protocol: "TCP"}, {Port: "1", EndPort: 65535, Protocol: "TCP"}}).Draw(t, "port")
	if p.Port == "" {
		return nil
	}
	return []api.PortRule{{Ports: []api.PortProtocol{p}}}
}

func genObject(t *rapid.T, i int) k8s.Object {
	subject := genSelector(t)
	delete(subject.MatchLabels, "k8s:"+labels.KeyPodNamespace)
	r := &api.Rule{EndpointSelector: &subject}
	for range rapid.IntRange(1, 4).Draw(t, "rules") {
		peers, ports := genPeers(t), genPorts(t)
		to := api.EgressPeers{ToEndpoints: peers.FromEndpoints, ToCIDRSet: peers.FromCIDRSet, ToEntities: peers.FromEntities}
		switch rapid.IntRange(0, 5).Draw(t, "list") {
		case 0:
			r.IngressDeny = append(r.IngressDeny, api.IngressDenyRule{IngressPeers: peers, ToPorts: ports})
		case 1:
			r.EgressDeny = append(r.EgressDeny, api.EgressDenyRule{EgressPeers: to, ToPorts: ports})
		case 2:
			r.Egress = append(r.Egress, api.EgressRule{EgressPeers: to, ToPorts: ports})
		default:
			r.Ingress = append(r.Ingress, api.IngressRule{IngressPeers: peers, ToPorts: ports})
		}
	}
	o, err := k8s.NewObject(&api.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i), Namespace: "shop"}, Spec: r})
	require.NoError(t, err)
	return o
}

func genPod(t *rapid.T, i int) oracle.Pod {
	ls := map[string]string{}
	for k, values := range map[string][]string{"app": {"", "a", "b", "c"}, "tier": {"", "x", "y", "z"}} {
		if v := rapid.SampledFrom(values).Draw(t, k); v != "" {
			ls[k] = v
		}
	}
	ns := rapid.SampledFrom([]string{"shop", "ops"}).Draw(t, "namespace")
	p := oracle.Pod{Name: fmt.Sprintf("%s/p%d", ns, i), Labels: labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", Labels: ls}),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}, NamedPorts: types.NamedPorts{}}
	if n := rapid.SampledFrom([]uint16{0, 80, 8080, 9}).Draw(t, "http"); n != 0 {
		p.NamedPorts[types.NamedPort{Name: "http", Proto: wtypes.ProtoTCP}] = n
	}
	return p
}

// without returns the policies less the rules that findings of these codes name.
func without(policies []*types.Policy, fs []Finding, codes ...Code) (out []*types.Policy, removed int) {
	for _, p := range policies {
		q := *p
		q.Rules = slices.DeleteFunc(slices.Clone(p.Rules), func(r types.Rule) bool {
			return slices.ContainsFunc(fs, func(f Finding) bool {
				return slices.Contains(codes, f.Code) && f.Resource.ID() == r.Ref.Resource.ID() &&
					f.Field == fmt.Sprintf("spec.%s[%d]", r.Ref.Section, r.Ref.Index)
			})
		})
		removed += len(p.Rules) - len(q.Rules)
		out = append(out, &q)
	}
	return out, removed
}

// Rules that are found to be shadowed can be taken out, all at once, and nobody
// sees a difference: neither the pods that were known nor such as come later.
func TestShadowedRulesMakeNoDifference(t *testing.T) {
	removed := 0
	rapid.Check(t, func(t *rapid.T) {
		var objects []k8s.Object
		for i := range rapid.IntRange(1, 3).Draw(t, "policies") {
			objects = append(objects, genObject(t, i))
		}
		var w World
		ow := &oracle.World{Nodes: []oracle.Node{
			{Name: "here", Local: true, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			{Name: "there", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		}}
		known := rapid.IntRange(0, 3).Draw(t, "pods that are known")
		for i := range known + 4 {
			p := genPod(t, i)
			ow.Pods = append(ow.Pods, p)
			if i < known {
				w.Pods = append(w.Pods, simulate.Pod{Name: p.Name, Labels: p.Labels, Addrs: p.Addrs, NamedPorts: p.NamedPorts})
			}
		}
		opts := k8s.Options{ClusterName: "default"}
		all, err := k8s.TranslateAll(objects, opts)
		require.NoError(t, err)
		fs := Run(objects, w, opts)
		rest, n := without(all, fs, Overridden, Shadowed)
		removed += n
		if n == 0 {
			return
		}
		var addrs []netip.Addr
		for _, p := range ow.Pods {
			addrs = append(addrs, p.Addrs...)
		}
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "203.0.113.1", "203.0.113.70", "203.0.113.200", "198.51.100.1", "2001:db8::1"} {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		for _, src := range addrs {
			for _, dst := range addrs {
				if src == dst {
					continue
				}
				for _, q := range []packet{{wtypes.ProtoTCP, 80}, {wtypes.ProtoTCP, 8080}, {wtypes.ProtoTCP, 9}, {wtypes.ProtoTCP, 78}, {wtypes.ProtoTCP, 90}, {wtypes.ProtoTCP, 65535}, {wtypes.ProtoUDP, 80}, {wtypes.ProtoUDP, 9}, {wtypes.ProtoICMP, 8}} {
					c := oracle.Connection{Src: src, Dst: dst, Proto: q.proto, Port: q.port}
					before, after := oracle.Judge(ow, all, types.ModeDefault, c), oracle.Judge(ow, rest, types.ModeDefault, c)
					if before.Egress.Verdict != after.Egress.Verdict || before.Ingress.Verdict != after.Ingress.Verdict {
						t.Fatalf("%s -> %s %s/%d: %+v before, %+v after\n%v", src, dst, q.proto, q.port, before, after, describeAll(fs, objects))
					}
				}
			}
		}
	})
	require.Positive(t, removed, "no rule was ever found, so the test says nothing")
}

func describeAll(fs []Finding, objects []k8s.Object) string {
	var b strings.Builder
	for _, f := range fs {
		fmt.Fprintln(&b, f.Code.ID, f.Field, f.Reason)
	}
	for _, o := range objects {
		fmt.Fprintf(&b, "%+v\n", o.Value.(*api.CiliumNetworkPolicy).Spec)
	}
	return b.String()
}
