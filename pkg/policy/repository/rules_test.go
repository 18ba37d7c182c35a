package repository

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestADamagedOrForeignRuleTableIsRefused(t *testing.T) {
	for name, text := range map[string]string{"cut off": `{"version":1,"ru`, "of a later release": `{"version":2}`} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600))
		_, err := New(Config{StateDir: dir})
		require.ErrorContains(t, err, "together", name)
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
}
