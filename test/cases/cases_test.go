package cases

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
)

var supported = []string{SuiteCyclonus, SuiteGenNP, SuiteGenCilium, SuiteHandCilium}

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

// judge answers for every cell of a world as it is now.
type judge interface {
	see(w *World, e *Ends) error
	ask(c Cell) (verdict, error)
}

// byOracle asks policy/oracle.
type byOracle struct {
	world    *oracle.World
	ends     *Ends
	policies []*types.Policy
}

func (j *byOracle) see(w *World, e *Ends) error {
	j.world, j.ends, j.policies = OracleWorld(e), e, w.Policies()
	return nil
}

func (j *byOracle) ask(c Cell) (verdict, error) {
	from, to := j.ends.ByName[c.From], j.ends.ByName[c.To]
	v := oracle.Judge(j.world, j.policies, types.ModeDefault, oracle.Connection{
		Src: from.Addr, Dst: to.Addr, Proto: c.Probe.Proto, Port: c.Probe.Port})
	if v.Egress.Judged != from.Pod || v.Ingress.Judged != to.Pod {
		return verdict{}, fmt.Errorf("the oracle judged egress %v and ingress %v", v.Egress.Judged, v.Ingress.Judged)
	}
	return verdict{Letter(v.Egress.Verdict, v.Ingress.Verdict), v.Egress.Ref, v.Ingress.Ref}, nil
}

// byMapState asks the map state of each end.
type byMapState struct {
	ends   *Ends
	states map[string]policy.MapState // by End.Name
	rules  []types.RuleRef            // by number, less one
}

func (j *byMapState) numberOf(ref types.RuleRef) types.RuleID {
	for i, r := range j.rules {
		if r.String() == ref.String() {
			return types.RuleID(i + 1)
		}
	}
	j.rules = append(j.rules, ref)
	return types.RuleID(len(j.rules))
}

func (j *byMapState) see(w *World, e *Ends) error {
	j.ends, j.states, j.rules = e, map[string]policy.MapState{}, nil
	policies := w.Policies()
	for name, end := range e.ByName {
		if !end.Pod {
			continue
		}
		sp := policy.Resolve(policy.Subject{Identity: end.Identity, Labels: end.Labels, NamedPorts: end.NamedPorts},
			policies, types.ModeDefault, j.numberOf)
		m, err := sp.MapState(e.Index)
		if err != nil {
			return err
		}
		j.states[name] = m
	}
	return nil
}

func (j *byMapState) ask(c Cell) (verdict, error) {
	from, to := j.ends.ByName[c.From], j.ends.ByName[c.To]
	egress, eref, err := j.decide(from, to, types.Egress, c)
	if err != nil {
		return verdict{}, err
	}
	ingress, iref, err := j.decide(to, from, types.Ingress, c)
	return verdict{Letter(egress, ingress), eref, iref}, err
}

func (j *byMapState) decide(subject, peer End, dir types.Direction, c Cell) (types.Verdict, types.RuleRef, error) {
	if !subject.Pod {
		return types.Allow, types.RuleRef{}, nil
	}
	d := j.states[subject.Name].Decide(dir, peer.Identity, peer.Prefix, c.Probe.Proto, c.Probe.Port)
	if !d.Found || d.Rule == 0 {
		return 0, types.RuleRef{}, fmt.Errorf("%s of %s: no entry was found", dir, subject.Name)
	}
	return d.Verdict, j.rules[d.Rule-1], nil
}

// run plays all supported cases of which choose is true and returns the cells
// asked. Both judges must give the right letter and the same rules.
func run(t *testing.T, cluster string, choose func(Case) bool) int {
	t.Helper()
	set := load(t)
	asked := 0
	var failed []string
	for _, c := range set.Cases {
		if !slices.Contains(supported, c.Suite) || !choose(c) {
			continue
		}
		n, err := play(set.Worlds[c.World], c, cluster)
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

func play(data *WorldData, c Case, cluster string) (asked int, err error) {
	w := NewWorld(data, cluster)
	numbers := &Numbers{}
	slow, fast := &byOracle{}, &byMapState{}
	for i, step := range c.Steps {
		if err := w.Run(step); err != nil {
			return asked, fmt.Errorf("step %d: %w", i, err)
		}
		ends, err := w.Ends(numbers)
		if err != nil {
			return asked, fmt.Errorf("step %d: %w", i, err)
		}
		for _, j := range []judge{slow, fast} {
			if err := j.see(w, ends); err != nil {
				return asked, fmt.Errorf("step %d: %w", i, err)
			}
		}
		for _, cell := range step.Cells(w.Probes) {
			asked++
			a, err := slow.ask(cell)
			if err != nil {
				return asked, fmt.Errorf("step %d %s: %w", i, cell, err)
			}
			b, err := fast.ask(cell)
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

func TestEveryCellOfEverySupportedSuite(t *testing.T) {
	for _, suite := range supported {
		t.Run(suite, func(t *testing.T) {
			n := run(t, "default", func(c Case) bool { return c.Suite == suite })
			t.Logf("%d verdicts", n)
			require.NotZero(t, n)
		})
	}
}

// G04: an ipBlock as only peer must not let the namespace in, whatever the
// cluster is called.
func TestG04_IPBlockCasesUnderAnotherClusterName(t *testing.T) {
	n := run(t, "blue-7", func(c Case) bool {
		return slices.ContainsFunc(c.Tags, func(tag string) bool {
			return strings.HasPrefix(tag, "ip-block") || strings.HasPrefix(tag, "CIDR") || tag == "peer-ipblock"
		})
	})
	require.Greater(t, n, 100_000)
}

// A peer of another cluster has no business with this one's policies.
func TestPodsOfAnotherClusterAreNobody(t *testing.T) {
	set := load(t)
	c := set.Cases[slices.IndexFunc(set.Cases, func(c Case) bool { return c.ID == "cilh-peer-namespace-exists" })]
	w := NewWorld(set.Worlds[c.World], "blue-7")
	require.NoError(t, w.Run(c.Steps[0]))
	w.Cluster = "green-1" // the pods get another cluster's label, the policy stays
	ends, err := w.Ends(&Numbers{})
	require.NoError(t, err)
	j := &byMapState{}
	require.NoError(t, j.see(w, ends))
	v, err := j.ask(Cell{Probe: w.Probes[0], From: "y/a", To: "x/a"})
	require.NoError(t, err)
	require.Equal(t, byte(Ingress), v.letter)
}

// The kinds of a later issue are refused by name, never taken for something else.
func TestUnsupportedSuitesAreRefusedByName(t *testing.T) {
	set := load(t)
	refused := 0
	for _, c := range set.Cases {
		if slices.Contains(supported, c.Suite) {
			continue
		}
		w := NewWorld(set.Worlds[c.World], "default")
		for _, step := range c.Steps {
			for _, op := range step.Do {
				if op.Apply == nil || !strings.Contains(string(op.Apply), "ClusterNetworkPolicy") {
					continue
				}
				require.ErrorContains(t, w.Apply(op), "ClusterNetworkPolicy (policy.networking.k8s.io/", c.ID)
				refused++
			}
		}
	}
	require.Equal(t, 295, refused)
}

func TestNumbersAreStable(t *testing.T) {
	n := &Numbers{}
	a := labels.NewLabelArray(labels.New("k8s", "app", "a"))
	require.EqualValues(t, 256, n.Of(a))
	require.EqualValues(t, 257, n.Of(a.With(labels.New("k8s", "x", ""))))
	require.EqualValues(t, 256, n.Of(a))
	require.EqualValues(t, 1, n.Of(labels.NewLabelArray(labels.Reserved("host"))))
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
