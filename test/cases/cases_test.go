package cases

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
)

func load(t testing.TB) *Set {
	t.Helper()
	s, err := Load()
	require.NoError(t, err)
	return s
}

func TestTheFileIsWhole(t *testing.T) {
	s := load(t)
	steps, cells := 0, 0
	for _, c := range s.Cases {
		steps += len(c.Steps)
		for _, step := range c.Steps {
			cells += len(step.Cells(s.Worlds[c.World].Probes))
		}
	}
	require.Equal(t, 873, len(s.Cases))
	require.Equal(t, 1175, steps)
	require.Equal(t, 918444, cells)
}

// verdict is what one of the judges says of a cell.
type verdict struct {
	letter          byte
	egress, ingress types.RuleRef
}

// byOracle asks policy/oracle.
type byOracle struct {
	world    *oracle.World
	policies []*types.Policy
}

// newOracle is the same world for policy/oracle, which knows no numbers.
func newOracle(w *casefile.World, sim *simulate.Cluster) byOracle {
	o := &oracle.World{}
	for _, name := range sim.Names() {
		ends, _ := sim.Ends(name)
		end := ends[0]
		switch {
		case end.Pod:
			o.Pods = append(o.Pods, oracle.Pod{Name: name, Labels: end.Labels, Addrs: []netip.Addr{end.Addr}, NamedPorts: end.NamedPorts})
		case strings.HasPrefix(name, "ent/"):
			o.Nodes = append(o.Nodes, oracle.Node{Name: name, Local: end.Identity == identity.ReservedHost, Addrs: []netip.Addr{end.Addr}, Labels: end.Labels})
		}
	}
	return byOracle{o, w.Policies()}
}

func (j byOracle) ask(from, to simulate.End, c casefile.Cell) (verdict, error) {
	v := oracle.Judge(j.world, j.policies, types.ModeDefault, oracle.Connection{
		Src: from.Addr, Dst: to.Addr, Proto: c.Probe.Proto, Port: c.Probe.Port})
	if v.Egress.Judged != from.Pod || v.Ingress.Judged != to.Pod {
		return verdict{}, fmt.Errorf("the oracle judged egress %v and ingress %v", v.Egress.Judged, v.Ingress.Judged)
	}
	return verdict{simulate.Letter(v.Egress.Verdict, v.Ingress.Verdict), v.Egress.Ref, v.Ingress.Ref}, nil
}

// byMapState asks the map state of each end.
func byMapState(sim *simulate.Cluster, from, to simulate.End, c casefile.Cell) (verdict, error) {
	egress, ingress, err := sim.Decide(from, to, c.Probe.Proto, c.Probe.Port)
	return verdict{simulate.Letter(egress.Verdict, ingress.Verdict), egress.Rule, ingress.Rule}, err
}

func ends(t testing.TB, sim *simulate.Cluster, name string) simulate.End {
	t.Helper()
	found, _ := sim.Ends(name)
	if len(found) != 1 {
		t.Fatalf("%d ends are called %s", len(found), name)
	}
	return found[0]
}

// run plays all cases of which choose is true and returns the cells
// asked. Both judges must give the right letter and the same rules.
func run(t *testing.T, cluster string, choose func(casefile.Case) bool) int {
	t.Helper()
	set := load(t)
	asked := 0
	var failed []string
	for _, c := range set.Cases {
		if !choose(c) {
			continue
		}
		n, err := play(t, set.Worlds[c.World], c, cluster)
		asked += n
		if err != nil {
			failed = append(failed, c.ID)
			if len(failed) <= 10 {
				t.Errorf("%s (%s): %v", c.ID, c.Title, err)
			}
		}
	}
	if len(failed) > 0 {
		t.Errorf("%d cases fail: %s", len(failed), strings.Join(failed, " "))
	}
	return asked
}

func play(t *testing.T, data *casefile.WorldData, c casefile.Case, cluster string) (asked int, err error) {
	w := casefile.NewWorld(data, cluster)
	numbers := &simulate.Numbers{}
	for i, step := range c.Steps {
		if err := w.Run(step); err != nil {
			return asked, fmt.Errorf("step %d: %w", i, err)
		}
		sim, err := w.Simulate(numbers)
		if err != nil {
			return asked, fmt.Errorf("step %d: %w", i, err)
		}
		slow := newOracle(w, sim)
		for _, cell := range step.Cells(w.Probes) {
			asked++
			from, to := ends(t, sim, cell.From), ends(t, sim, cell.To)
			a, err := slow.ask(from, to, cell)
			if err != nil {
				return asked, fmt.Errorf("step %d %s: %w", i, cell, err)
			}
			b, err := byMapState(sim, from, to, cell)
			if err != nil {
				return asked, fmt.Errorf("step %d %s: %w", i, cell, err)
			}
			if a.letter != cell.Want || b.letter != cell.Want {
				return asked, fmt.Errorf("step %d %s: want %c, the oracle says %c (%s; %s), the map state %c (%s; %s)", i, cell,
					cell.Want, a.letter, a.egress, a.ingress, b.letter, b.egress, b.ingress)
			}
			if a.egress.String() != b.egress.String() || a.ingress.String() != b.ingress.String() {
				return asked, fmt.Errorf("step %d %s: the oracle names (%s; %s), the map state (%s; %s)", i, cell,
					a.egress, a.ingress, b.egress, b.ingress)
			}
		}
	}
	return asked, nil
}

func TestEveryCellOfEverySuite(t *testing.T) {
	for _, suite := range []string{SuiteCyclonus, SuiteGenNP, SuiteGenCilium, SuiteHandCilium, SuiteGenCNP, SuiteConformance} {
		t.Run(suite, func(t *testing.T) {
			n := run(t, "default", func(c casefile.Case) bool { return c.Suite == suite })
			t.Logf("%d verdicts", n)
			require.NotZero(t, n)
		})
	}
}

// G04: an ipBlock as only peer must not let the namespace in, whatever the
// cluster is called. All cases with a block in any policy, whatever their tags.
func TestG04_IPBlockCasesUnderAnotherClusterName(t *testing.T) {
	played := 0
	n := run(t, "blue-7", func(c casefile.Case) bool {
		has := slices.ContainsFunc(c.Steps, func(s casefile.Step) bool {
			return slices.ContainsFunc(s.Do, func(op casefile.Op) bool {
				return strings.Contains(string(op.Apply), `"ipBlock"`) || strings.Contains(string(op.Apply), "CIDR")
			})
		})
		if has {
			played++
		}
		return has
	})
	require.Equal(t, 515, played)
	require.Greater(t, n, 100_000)
}

// A peer of another cluster has no business with this one's policies.
func TestPodsOfAnotherClusterAreNobody(t *testing.T) {
	set := load(t)
	c := set.Cases[slices.IndexFunc(set.Cases, func(c casefile.Case) bool { return c.ID == "cilh-peer-namespace-exists" })]
	w := casefile.NewWorld(set.Worlds[c.World], "blue-7")
	require.NoError(t, w.Run(c.Steps[0]))
	w.Cluster = "green-1" // the pods get another cluster's label, the policy stays
	sim, err := w.Simulate(&simulate.Numbers{})
	require.NoError(t, err)
	v, err := byMapState(sim, ends(t, sim, "y/a"), ends(t, sim, "x/a"), casefile.Cell{Probe: w.Probes[0]})
	require.NoError(t, err)
	require.Equal(t, byte(simulate.Ingress), v.letter)
}

func TestASampleIsTheSameEveryTime(t *testing.T) {
	set := load(t)
	a := set.Sample(60, SuiteCyclonus, SuiteGenNP)
	require.Len(t, a, 60)
	slices.Reverse(set.Cases)
	require.Equal(t, a, set.Sample(60, SuiteCyclonus, SuiteGenNP))
	for _, c := range a {
		require.Len(t, c.Steps, 1)
	}
	require.Greater(t, len(set.Sample(10_000, SuiteCyclonus, SuiteGenNP)), 60)
}
