package simulate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// town has namespaces with ten pods and one policy each.
func town(spaces int) Sketch {
	s := Sketch{Cluster: "default", Namespaces: map[string]map[string]string{}}
	for n := range spaces {
		ns := fmt.Sprintf("ns-%d", n)
		for i := range 10 {
			s.Pods = append(s.Pods, SketchedPod{Namespace: ns, Name: fmt.Sprint(i), Labels: map[string]string{"app": "a", "id": fmt.Sprint(n, "-", i)},
				Ports: []Port{{Name: "web", Proto: wtypes.ProtoTCP, Port: 80}}})
		}
		s.Policies = append(s.Policies, policyFor(ns, "app", "a"))
	}
	return s
}

func policyFor(ns, key, value string) *types.Policy {
	p := &types.Policy{Resource: types.Resource{Kind: "P", Namespace: ns, Name: key}, IsolatesIngress: true,
		Subject: is(key, value).With(labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.In, Values: []string{ns}})}
	peer := is("id", "0-0")
	p.Rules = []types.Rule{{Ref: types.RuleRef{Resource: p.Resource, Section: "ingress"}, Verdict: types.Allow, Peers: []types.Peer{{Labels: &peer}}}}
	return p
}

func TestAPodIsNotComparedWithThePoliciesOfOtherNamespaces(t *testing.T) {
	s := town(50)
	everywhere := &types.Policy{Resource: types.Resource{Kind: "P", Name: "all"}}
	s.Policies = append(s.Policies, everywhere)
	c := build(t, s)
	ends, _ := c.Ends("ns-7/0")
	require.Equal(t, []*types.Policy{s.Policies[7], everywhere}, c.subjects.of(ends[0].Labels))
}

func TestNoPolicyThatSelectsAPodIsPassedOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"x", "y", "z"})
		requirement := rapid.Custom(func(t *rapid.T) labels.Requirement {
			return labels.Requirement{Source: rapid.SampledFrom([]string{labels.SourceAny, labels.SourceK8s}).Draw(t, "source"), Key: word.Draw(t, "key"),
				Operator: rapid.SampledFrom([]labels.Operator{labels.In, labels.NotIn, labels.Exists, labels.DoesNotExist}).Draw(t, "operator"),
				Values:   rapid.SliceOfN(word, 0, 2).Draw(t, "values")}
		})
		var policies []*types.Policy
		for i := range rapid.IntRange(0, 12).Draw(t, "policies") {
			policies = append(policies, &types.Policy{Resource: types.Resource{Name: fmt.Sprint(i)},
				Subject: labels.NewSelector(rapid.SliceOfN(requirement, 0, 3).Draw(t, "subject")...)})
		}
		pod := map[string]string{}
		for range rapid.IntRange(0, 3).Draw(t, "labels") {
			pod[word.Draw(t, "key")] = word.Draw(t, "value")
		}
		a := labels.PodLabels(labels.Pod{Namespace: "n", Labels: pod})
		selecting := func(ps []*types.Policy) []*types.Policy {
			return slices.DeleteFunc(slices.Clone(ps), func(p *types.Policy) bool { return !p.Subject.Matches(a) })
		}
		want, got := selecting(policies), selecting(newSubjects(policies).of(a))
		if !slices.Equal(want, got) {
			t.Fatalf("%d policies select the pod, found were %d", len(want), len(got))
		}
	})
}

func TestPodsThatAreGovernedAlikeShareOneMapState(t *testing.T) {
	s := town(3)
	s.Pods[0].Ports = []Port{{Name: "web", Proto: wtypes.ProtoTCP, Port: 81}}
	c := build(t, s)
	for _, name := range c.Names() {
		if ends, _ := c.Ends(name); ends[0].Pod {
			_, err := c.MapState(ends[0])
			require.NoError(t, err)
		}
	}
	require.Len(t, c.states, 30)
	require.Len(t, c.shared, 4, "one a namespace, and one for the pod whose port has another number")
	one, err := c.MapState(c.byName["ns-1/3"][0])
	require.NoError(t, err)
	alone, err := c.Policy(c.byName["ns-1/3"][0]).MapState(c.Index)
	require.NoError(t, err)
	require.Equal(t, alone, one)
}

func TestATableThatIsTooLargeIsSplitOrRefused(t *testing.T) {
	s := town(4)
	c := build(t, s)
	whole, err := c.tables(s.Ports(), "ns-1/0", maxCells)
	require.NoError(t, err)
	require.Len(t, whole, 2)
	split, err := c.tables(s.Ports(), "ns-1/0", 100)
	require.NoError(t, err)
	require.Len(t, split, 4)
	from, to := split[0], split[1]
	require.Len(t, from.Rows, 1)
	require.Len(t, from.Columns, 39)
	require.Equal(t, []string{"ns-1/0:80/TCP"}, to.Columns)
	require.Len(t, to.Rows, 40, "39 pods and the node")
	cells := func(tables ...Table) map[[2]string]string {
		out := map[[2]string]string{}
		for _, t := range tables {
			for _, r := range t.Rows {
				for i, cell := range r.Cells {
					if cell != string(Nothing) {
						out[[2]string{r.Name, t.Columns[i]}] = cell
					}
				}
			}
		}
		return out
	}
	require.Equal(t, cells(whole[0]), cells(from, to))

	c = build(t, s)
	_, err = c.tables(s.Ports(), "", 100)
	require.ErrorContains(t, err, "the table has 1640 cells (41 sources, 40 ports), the most is 100; ask for one pod with --pod")
	require.Empty(t, c.states, "nobody was judged for it")
}

func TestATableOfNothingHasEmptyLists(t *testing.T) {
	s := village()
	tables, err := build(t, s).Tables(s.Ports(), "x/c")
	require.NoError(t, err)
	require.Equal(t, Table{Family: "IPv6", Columns: []string{}, Rows: []Row{}}, tables[1], "and no null as JSON")
}

func TestADifferenceAsksOnlyWhereItMayBe(t *testing.T) {
	old, now := town(20), town(20)
	now.Policies = append(now.Policies, policyFor("ns-3", "id", "3-4"))
	d, asked, err := diff(build(t, old), build(t, now), now.Ports(), "", maxAsked)
	require.NoError(t, err)
	require.Empty(t, d.Isolations, "it was isolated before")
	require.Equal(t, 200, asked, "from everybody to the one pod, of 40,000 connections")
	require.Empty(t, d.Pairs)

	now.Policies[len(now.Policies)-1].Rules[0].Peers = nil
	d, asked, err = diff(build(t, old), build(t, now), now.Ports(), "", maxAsked)
	require.NoError(t, err)
	require.Equal(t, 200, asked)
	require.Len(t, d.Pairs, 198, "all but ns-0/0 and the node, who may before")

	d, asked, err = diff(build(t, old), build(t, now), now.Ports(), "ns-5/5", maxAsked)
	require.NoError(t, err)
	require.Equal(t, 1, asked)
	require.Len(t, d.Pairs, 1)

	d, _, err = diff(build(t, old), build(t, now), now.Ports(), "", 199)
	require.NoError(t, err)
	require.Equal(t, 200, d.NotAsked)
	require.Empty(t, d.Pairs)
	require.False(t, d.Empty(), "what was not asked may differ")
}

// Whatever changes, the pairs that are not asked about do not differ.
func TestADifferenceMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		app := rapid.SampledFrom([]string{"a", "b"})
		block := rapid.SampledFrom([]string{"10.77.0.0/29", "10.77.0.4/32", "192.0.2.0/24", "192.0.2.1/32"})
		draw := func() Sketch {
			s := village()
			s.Policies = nil
			for i := range s.Pods {
				s.Pods[i].Labels = map[string]string{"app": app.Draw(t, "app")}
				s.Pods[i].Ports = []Port{{Name: "web", Proto: wtypes.ProtoTCP, Port: rapid.Uint16Range(80, 81).Draw(t, "web")}}
			}
			for i := range rapid.IntRange(0, 3).Draw(t, "policies") {
				p := &types.Policy{Resource: types.Resource{Kind: "P", Name: fmt.Sprint(i)}, Subject: is("app", app.Draw(t, "subject")),
					IsolatesIngress: rapid.Bool().Draw(t, "ingress"), IsolatesEgress: rapid.Bool().Draw(t, "egress")}
				for j := range rapid.IntRange(0, 2).Draw(t, "rules") {
					r := types.Rule{Ref: types.RuleRef{Resource: p.Resource, Section: "r", Index: j}, Verdict: rapid.SampledFrom([]types.Verdict{types.Allow, types.Deny}).Draw(t, "verdict"),
						Direction: rapid.SampledFrom([]types.Direction{types.Ingress, types.Egress}).Draw(t, "direction")}
					if rapid.Bool().Draw(t, "block") {
						r.Peers = []types.Peer{{CIDR: &types.CIDRPeer{Prefix: netip.MustParsePrefix(block.Draw(t, "prefix")), Pods: rapid.Bool().Draw(t, "pods")}}}
					} else {
						peer := is("app", app.Draw(t, "peer"))
						r.Peers = []types.Peer{{Labels: &peer}}
					}
					if rapid.Bool().Draw(t, "named") {
						r.Ports = []types.Port{{Proto: wtypes.ProtoTCP, Name: "web"}}
					}
					p.Rules = append(p.Rules, r)
				}
				s.Policies = append(s.Policies, p)
			}
			return s
		}
		before, after := draw(), draw()
		if rapid.Bool().Draw(t, "same policies") { // then only who the ends are differs
			after.Policies = before.Policies
		}
		old, now := clusterOf(t, before), clusterOf(t, after)
		ports := func(string) []Port {
			return []Port{{Proto: wtypes.ProtoTCP, Port: 80}, {Proto: wtypes.ProtoTCP, Port: 81}}
		}
		got, err := Diff(old, now, ports, "")
		if err != nil {
			t.Fatal(err)
		}
		var want Difference
		for _, from := range old.Names() {
			for _, to := range old.Names() {
				for _, p := range ports(to) {
					if from == to {
						continue
					}
					if err := want.pair(old, now, from, to, p, true, true); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if len(want.Pairs) != len(got.Pairs) {
			t.Fatalf("%d pairs differ, found were %d", len(want.Pairs), len(got.Pairs))
		}
	})
}

func TestPeersOfOneRuleAreOneText(t *testing.T) {
	words := dictionary{}
	a, b := texts{words, map[types.RuleID]uint64{}}, texts{words, map[types.RuleID]uint64{}}
	rule := func(id types.RuleID, v types.Verdict) *policy.ResolvedRule {
		return &policy.ResolvedRule{ID: id, Rule: types.Rule{Verdict: v}}
	}
	require.Equal(t, a.rule(rule(1, types.Allow)), b.rule(rule(9, types.Allow)), "numbers are each cluster's own")
	require.NotEqual(t, a.rule(rule(1, types.Allow)), b.rule(rule(1, types.Deny)))
}
