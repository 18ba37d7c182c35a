package cmd

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	clicmd "github.com/weirnet/weir/cli/cmd"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/identity"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// ready is an endpoint's row of which there is nothing to tell.
func readyRow(id uint16, change func(*endpoint.Row)) *endpoint.Row {
	r := &endpoint.Row{ID: id, State: regeneration.StateReady, Identity: 300, Pod: endpoint.Pod{Namespace: "x", Name: "web"}}
	if change != nil {
		change(r)
	}
	return r
}

func TestN50WarningsOfEndpointsSayWhatTheyBreak(t *testing.T) {
	const defaults = policytypes.ModeDefault
	mode := func(m policytypes.Mode) func(*endpoint.Row) {
		return func(r *endpoint.Row) { r.Settings.Enforcement = policytypes.EnforcementOf(m) }
	}
	for _, c := range []struct {
		what   string
		node   policytypes.Mode
		change func(*endpoint.Row)
		code   string // empty: no warning
		breaks health.Breaks
	}{
		{"all is well", defaults, nil, "", ""},
		{"audit", defaults, func(r *endpoint.Row) { r.Audit = true }, codeAudit, health.BreaksEnforcement},
		{"audit that the kernel still has", defaults, func(r *endpoint.Row) { r.KernelSettings.Audit = true }, codeAudit, health.BreaksEnforcement},
		{"a mode that allows more", defaults, mode(policytypes.ModeNever), codeEnforcement, health.BreaksEnforcement},
		{"a mode that allows more than always", policytypes.ModeAlways, mode(defaults), codeEnforcement, health.BreaksEnforcement},
		{"a mode that allows less", defaults, mode(policytypes.ModeAlways), "", ""},
		{"a mode that allows less than never", policytypes.ModeNever, mode(defaults), "", ""},
		{"the node's mode as its own", policytypes.ModeNever, mode(policytypes.ModeNever), "", ""},
		{"what the kernel has counts", defaults, func(r *endpoint.Row) {
			r.Realized, r.KernelSettings.Enforcement = &plan.Layout{}, policytypes.EnforcementOf(policytypes.ModeNever)
		}, codeEnforcement, health.BreaksEnforcement},
		{"a policy that does not fit", defaults, func(r *endpoint.Row) { r.Degraded = "too many lines" }, codePolicyMap, health.BreaksPods},
		{"no labels", defaults, func(r *endpoint.Row) { r.Identity = identity.ReservedInit }, codeNoLabels, health.BreaksPods},
	} {
		var got []health.Warning
		for code, ws := range endpointWarnings([]*endpoint.Row{readyRow(7, c.change)}, c.node) {
			for _, w := range ws {
				w.Code = code
				got = append(got, w)
			}
		}
		if c.code == "" {
			require.Empty(t, got, c.what)
			continue
		}
		require.Len(t, got, 1, c.what)
		require.Equal(t, c.code, got[0].Code, c.what)
		require.Equal(t, c.breaks, got[0].Breaks, c.what)
		require.Contains(t, got[0].Text, "endpoint 7 (x/web)", c.what)
		require.NotEmpty(t, got[0].Next, c.what)
	}
}

func TestN50AnEndpointThatIsBeingBuiltIsNoWarning(t *testing.T) {
	begun, now := map[uint16]time.Time{}, time.Unix(1000, 0)
	rows := []*endpoint.Row{readyRow(1, nil), readyRow(2, func(r *endpoint.Row) { r.State, r.Reason = regeneration.StateRegenerating, "policy changed" })}
	require.Empty(t, notReady(rows, begun, now))
	ws := notReady(rows, begun, now.Add(buildPatience))
	require.Len(t, ws, 1)
	require.Equal(t, now, ws[0].Since, "since it began, not since it was asked")
	require.Equal(t, "endpoint 2", ws[0].Subject)
	require.Empty(t, notReady(rows[:1], begun, now.Add(time.Minute)))
	require.Empty(t, begun, "what is gone is forgotten")
}

// Where a next step begins with a command of weir, that command is there.
func TestN50NextStepsNameCommandsThatExist(t *testing.T) {
	all := map[string][]health.Warning{}
	for code, ws := range endpointWarnings([]*endpoint.Row{
		readyRow(7, func(r *endpoint.Row) {
			r.Audit, r.Degraded, r.Identity, r.Settings.Enforcement = true, "x", identity.ReservedInit, policytypes.EnforcementOf(policytypes.ModeNever)
		}),
	}, policytypes.ModeDefault) {
		require.Len(t, ws, 1, code)
		all[code] = ws
	}
	all[codePortNames], all[codeIPCache] = portWarnings([]string{"n"}), ipcacheWarnings(errors.New("x"))
	begun := map[uint16]time.Time{}
	rows := []*endpoint.Row{readyRow(7, func(r *endpoint.Row) { r.Reason = "x" })}
	notReady(rows, begun, time.Unix(0, 0))
	all[codeNotReady] = notReady(rows, begun, time.Unix(100, 0))
	for code, ws := range all {
		for _, w := range ws {
			require.NotEmpty(t, w.Next, code)
			for _, part := range strings.Split(w.Next, ": ") {
				if words := strings.Fields(part); len(words) > 1 && words[0] == "weir" {
					requireCommand(t, clicmd.Root(), words[1:])
				}
			}
		}
	}
}

func requireCommand(t *testing.T, root *cobra.Command, words []string) {
	t.Helper()
	c, rest, err := root.Find(words)
	require.NoError(t, err, words)
	require.True(t, c.Runnable() && !c.HasSubCommands(), "%v is no whole command", words)
	if c.Args != nil && len(rest) > 0 {
		require.NoError(t, c.Args(c, rest), words)
	}
}
