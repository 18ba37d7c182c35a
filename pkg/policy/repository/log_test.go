package repository

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/types"
)

func TestARuleWithAnotherLogValueHasAnotherNumber(t *testing.T) {
	dir := t.TempDir()
	table, damage := openRules(dir, nil)
	require.Nil(t, damage)
	ref := types.RuleRef{Resource: types.Resource{Kind: "CiliumNetworkPolicy", Namespace: "x", Name: "p"}, Section: types.SectionIngress}
	plain := table.number(ref)
	ref.Log = "audit"
	logged := table.number(ref)
	require.NotEqual(t, plain, logged)
	require.NoError(t, table.flush())
	again, damage := openRules(dir, nil)
	require.Nil(t, damage)
	require.Equal(t, logged, again.number(ref))
	got, ok := again.ref(logged)
	require.True(t, ok)
	require.Equal(t, "audit", got.Log)
}
