package cmd

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

func TestOwnModesAreToldAndTheLaxOnesWarnedOf(t *testing.T) {
	const defaults, always, never = policytypes.ModeDefault, policytypes.ModeAlways, policytypes.ModeNever
	for _, c := range []struct {
		node  policytypes.Mode
		own   []policytypes.Mode
		text  string
		loose bool
	}{
		{defaults, nil, "", false},
		{defaults, []policytypes.Mode{always}, "1 endpoint in another mode than the node's, which is default: always 1", false},
		{defaults, []policytypes.Mode{never, always, never}, "3 endpoints in another mode than the node's, which is default: always 1, never 2", true},
		{always, []policytypes.Mode{defaults}, "1 endpoint in another mode than the node's, which is always: default 1", true},
		{always, []policytypes.Mode{never}, "1 endpoint in another mode than the node's, which is always: never 1", true},
		{never, []policytypes.Mode{defaults, always}, "2 endpoints in another mode than the node's, which is never: always 1, default 1", false},
		{never, []policytypes.Mode{never}, "", false},
	} {
		rows := []*endpoint.Row{{}, {}}
		for _, m := range c.own {
			rows = append(rows, &endpoint.Row{Settings: endpoint.Settings{Enforcement: policytypes.EnforcementOf(m)}})
		}
		text, loose := ownModes(c.node, rows)
		require.Equal(t, c.text, text)
		require.Equal(t, c.loose, loose, text)
	}
	built := &endpoint.Row{Realized: &plan.Layout{}, KernelSettings: endpoint.Settings{Enforcement: policytypes.EnforcementOf(never)}}
	_, loose := ownModes(defaults, []*endpoint.Row{built})
	require.True(t, loose, "what the kernel has counts, and not what it is to have")
}
