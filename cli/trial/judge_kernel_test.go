package trial

import (
	"testing"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/testutils"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func app(name string) labels.Selector {
	return labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: "app", Operator: labels.In, Values: []string{name}})
}

// world has a pod b that only a may reach, on one port.
func world(t *testing.T, port uint16) *simulate.Cluster {
	t.Helper()
	a := app("a")
	p := &types.Policy{Resource: types.Resource{Kind: "P", Namespace: "x", Name: "b"}, Subject: app("b"), IsolatesIngress: true, IsolatesEgress: true}
	p.Rules = []types.Rule{{Ref: types.RuleRef{Resource: p.Resource, Section: "ingress"}, Verdict: types.Allow, Peers: []types.Peer{{Labels: &a}},
		Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: port}}}}
	s := simulate.Sketch{Cluster: "c", Policies: []*types.Policy{p}}
	for _, name := range []string{"a", "b", "c"} {
		s.Pods = append(s.Pods, simulate.SketchedPod{Namespace: "x", Name: name, Labels: map[string]string{"app": name}})
	}
	w, err := s.World()
	if err != nil {
		t.Fatal(err)
	}
	c, err := simulate.New(w, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheKernelSaysWhatTheResolverSays(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("clang-19"))
	n, err := Open(env.BPFRoot, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	j := NewJudge(n)
	denied := 0
	for _, port := range []uint16{80, 81} { // the second time over the same programs
		c := world(t, port)
		if err := j.Take(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		for _, from := range c.Names() {
			for _, to := range c.Names() {
				sources, _ := c.Ends(from)
				targets, _ := c.Ends(to)
				for family := range sources {
					src, dst := sources[family], targets[family]
					if from == to || !src.Pod && !dst.Pod {
						continue
					}
					egress, ingress, err := j.Ask(src, dst, wtypes.ProtoTCP, 80)
					if err != nil {
						t.Fatal(err)
					}
					e, i, err := c.Decide(src, dst, wtypes.ProtoTCP, 80)
					if err != nil {
						t.Fatal(err)
					}
					for _, s := range []struct{ got, want simulate.Side }{{egress, e}, {ingress, i}} {
						if s.got.Judged != s.want.Judged || s.got.Verdict != s.want.Verdict || s.got.Rule.Key() != s.want.Rule.Key() {
							t.Errorf("%s -> %s: the kernel says %+v, the resolver %+v", src.Name, dst.Name, s.got, s.want)
						}
						if s.want.Verdict == types.Deny {
							denied++
						}
					}
				}
			}
		}
	}
	if denied == 0 {
		t.Error("nothing was denied")
	}

	// What the kernel holds counts, not what it should hold.
	c := world(t, 80)
	ends := func(name string) simulate.End { found, _ := c.Ends(name); return found[0] }
	if err := j.Take(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := j.Take(t.Context(), world(t, 81)); err != nil {
		t.Fatal(err)
	}
	j.sim = c
	if _, ingress, err := j.Ask(ends("x/a"), ends("x/b"), wtypes.ProtoTCP, 80); err == nil && ingress.Verdict != types.Deny {
		t.Errorf("the kernel holds another policy and says %+v all the same", ingress)
	}
}
