package repository

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func policySubject(name string) policy.Subject {
	return policy.Subject{Identity: 1000, Labels: app(name)}
}

func TestRuleNumbersSurviveARestartAndAreNotUsedTwice(t *testing.T) {
	dir := t.TempDir()
	decide := func(r *Repository) types.RuleID {
		require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{2000: app("client")}, nil))
		return resolve(t, r, "web", 1000).State.Decide(types.Ingress, 2000, 0, wtypes.ProtoTCP, 80).Rule
	}
	r := newRepository(t, dir)
	replace(t, r, allowFrom("n", "web", "client", 80))
	first := decide(r)
	ref, ok := r.Rule(first)
	require.True(t, ok)
	require.Equal(t, "NetworkPolicy x/n ingress[0] (n.yaml:7)", ref.String())

	r = newRepository(t, dir)
	ref, ok = r.Rule(first)
	require.True(t, ok, "events of before the restart can be named before any policy is read")
	require.Equal(t, "n", ref.Resource.Name)
	replace(t, r, allowFrom("other", "web", "client", 80))
	second := decide(r)
	require.NotEqual(t, first, second, "the old number may still be in a map")
	_, err := r.DeleteByResource("NetworkPolicy/x/other")
	require.NoError(t, err)
	replace(t, r, allowFrom("n", "web", "client", 80))
	require.Equal(t, first, decide(r), "the same rule has its number again")
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, FileName)}, left)
}

func TestN25ADamagedOrForeignRuleTableIsSetAsideAndItsNumbersAreNotGivenAgain(t *testing.T) {
	const rule = `{"Kind":0,"Resource":{"Kind":"NetworkPolicy","Name":"n"},"Section":"ingress"}`
	for name, text := range map[string]string{
		"empty": "", "cut off": `{"version":1,"ru`, "of a later release": `{"version":2}`, "of no version": `{}`,
		"with number 0":        `{"version":1,"next":9,"rules":[{"id":0,"ref":` + rule + `}]}`,
		"with a number twice":  `{"version":1,"next":9,"rules":[{"id":1,"ref":` + rule + `},{"id":1,"ref":{"Kind":2}}]}`,
		"with a rule twice":    `{"version":1,"next":9,"rules":[{"id":1,"ref":` + rule + `},{"id":2,"ref":` + rule + `}]}`,
		"with a negative next": `{"version":1,"next":-1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600))
			r, err := New(Config{StateDir: dir, Greatest: func() types.RuleID { return 70 }})
			require.NoError(t, err)
			aside, err := atomicfile.ListAside(dir)
			require.NoError(t, err)
			require.Len(t, aside, 1)
			kept, err := os.ReadFile(aside[0].Path)
			require.NoError(t, err)
			require.Equal(t, text, string(kept), "it is left for somebody to look at")
			require.EqualValues(t, 71, r.rules.number(types.RuleRef{Kind: 3}), "the kernel has numbers up to 70")
			require.NoError(t, r.rules.flush())
		})
	}
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, FileName, "x"), 0o700))
	r, err := New(Config{StateDir: dir, Greatest: func() types.RuleID { return 70 }})
	require.NoError(t, err)
	require.EqualValues(t, 71, r.rules.number(types.RuleRef{Kind: 3}))
	require.NoError(t, r.rules.flush(), "nothing is in the way of a new file")

	r, err = New(Config{StateDir: t.TempDir(), Greatest: func() types.RuleID { return 70 }})
	require.NoError(t, err)
	require.EqualValues(t, 71, r.rules.number(types.RuleRef{Kind: 3}), "the file was removed")

	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(`{"version":1,"next":900,"rules":[{"id":88`), 0o600))
	r, err = New(Config{StateDir: dir, Greatest: func() types.RuleID { return 70 }})
	require.NoError(t, err)
	require.EqualValues(t, 901, r.rules.number(types.RuleRef{Kind: 3}), "numbers that can still be seen are not given again")
}

// The counter is kept apart from the rules: also a number whose rule is
// forgotten is not given again.
func TestForgottenNumbersAreNotGivenAgain(t *testing.T) {
	dir := t.TempDir()
	table, damage := openRules(dir, nil)
	require.Nil(t, damage)
	ref := func(i int) types.RuleRef {
		return types.RuleRef{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: "n"}, Section: types.SectionIngress, Index: i}
	}
	used := map[types.RuleID]bool{}
	var last types.RuleID
	for i := 0; !table.crowded(); i++ {
		last = table.number(ref(i))
		used[last] = i < 10 // the oldest are in force
	}
	require.EqualValues(t, 2*maxRules+1, last)
	table.prune(used)
	require.False(t, table.crowded())
	require.Len(t, table.refs, maxRules+10)
	require.Len(t, table.byText, maxRules+10)
	for _, id := range []types.RuleID{1, 10, last} {
		_, known := table.ref(id)
		require.True(t, known, "%d is in force or new", id)
	}
	_, known := table.ref(11)
	require.False(t, known)
	require.NoError(t, table.flush())

	table, damage = openRules(dir, nil)
	require.Nil(t, damage)
	require.EqualValues(t, 5, table.number(ref(4)))
	require.Equal(t, last+1, table.number(ref(10)), "the rule that had 11 gets a new number")

	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(`{"version":1,"next":9,"rules":[]}`), 0o600))
	table, damage = openRules(dir, nil)
	require.Nil(t, damage)
	require.EqualValues(t, 9, table.number(ref(0)))
}

// A rule that answers depend on keeps its number, however many come and go.
func TestRulesInForceAreNotForgotten(t *testing.T) {
	r := newRepository(t, "")
	require.NoError(t, r.UpdateIdentities(t.Context(), identity.IdentityMap{1000: app("web"), 1001: app("db")}, nil))
	replace(t, r, allowFrom("old", "db", "client", 80))
	inForce := ruleIDs(resolve(t, r, "db", 1001).Policy)
	require.Len(t, inForce, 4, "a rule, two defaults and the local node")
	many := allowFrom("many", "web", "client", 80)
	for round := range 5 {
		many.Rules = make([]types.Rule, maxRules)
		for i := range many.Rules {
			many.Rules[i] = types.Rule{Ref: types.RuleRef{Resource: many.Resource, Section: types.SectionIngress, Index: i, Line: 10 + round}, Peers: []types.Peer{}}
		}
		replace(t, r, many)
		answer := resolve(t, r, "web", 1000)
		for _, id := range append(ruleIDs(answer.Policy), inForce...) {
			_, known := r.Rule(id)
			require.True(t, known, "round %d: number %d", round, id)
		}
		require.LessOrEqual(t, len(r.rules.refs), 5*maxRules)
	}
}

func TestANumberThatCannotBeKeptIsNotGivenOut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.Mkdir(dir, 0o700))
	r := newRepository(t, dir)
	require.NoError(t, os.Remove(dir))
	replace(t, r, allowFrom("n", "web", "client", 80))
	_, err := r.Resolve(policySubject("web"))
	require.ErrorContains(t, err, "keeping rule numbers")
	require.NoError(t, os.Mkdir(dir, 0o700))
	_, err = r.Resolve(policySubject("web"))
	require.NoError(t, err)
	_, err = os.Stat(filepath.Join(dir, FileName))
	require.NoError(t, err, "what could not be written is written with the next answer")
}
