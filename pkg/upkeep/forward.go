package upkeep

import (
	"context"
	"fmt"
	"strings"

	"github.com/weirnet/weir/pkg/datapath/filter"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/health"
)

// Forward tells of chains of the node's packet filter that drop what it forwards
// for pods. With accept it inserts rules there that let it pass, and without it
// takes away those that it made before.
func Forward(pools []Pool, accept bool) Step {
	const code = "packet-filter"
	look := func(ctx context.Context) (filter.State, error) {
		return filter.Look(ctx, prefixes(pools), link.HostPrefix)
	}
	return Step{Name: "Packet filter", Codes: []string{code},
		Ensure: func(ctx context.Context) (r Result, err error) {
			s, err := look(ctx)
			if err != nil {
				// A filter that cannot be read must not keep the agent from its work.
				r.Warnings = append(r.Warnings, health.Warning{Code: code, Text: "nobody can tell whether the node's packet filter drops forwarded packets: " + err.Error(), Next: "nft list chains; iptables -S FORWARD"})
				return r, nil
			}
			if s.Unseen != "" {
				r.Warnings = append(r.Warnings, health.Warning{Code: code, Text: "nobody can tell whether the node's packet filter drops forwarded packets: " + s.Unseen, Next: "install nftables (or iptables, where it is used)"})
			}
			if accept {
				made, err := filter.Keep(ctx, s)
				for _, m := range made {
					r.Changed = append(r.Changed, fmt.Sprintf("%s had no rule that accepts forwarded packets of %s", m.Chain, m.Prefix))
				}
				if err == nil {
					return r, nil
				}
				r.Warnings = append(r.Warnings, dropping(code, s.Lacking(), "the rules of --accept-forward could not be set: "+err.Error())...)
				return r, nil
			}
			if err := filter.Withdraw(ctx, s); err != nil {
				return r, err
			}
			r.Warnings = append(r.Warnings, dropping(code, s.Missing, "")...)
			return r, nil
		},
		Undo: func(ctx context.Context) error {
			s, err := look(ctx)
			if err != nil {
				return err
			}
			return filter.Withdraw(ctx, s)
		},
		List: func(ctx context.Context) (out []string, err error) {
			s, err := look(ctx)
			for _, r := range s.Ours {
				out = append(out, "rule of "+r.Chain.String()+": "+r.Command())
			}
			return out, err
		}}
}

// dropping is a warning for each chain, with the commands that help.
func dropping(code string, missing []filter.Rule, more string) []health.Warning {
	var out []health.Warning
	commands := map[filter.Chain][]string{}
	var order []filter.Chain
	for _, r := range missing {
		if commands[r.Chain] == nil {
			order = append(order, r.Chain)
		}
		commands[r.Chain] = append(commands[r.Chain], r.Command())
	}
	for _, c := range order {
		text := fmt.Sprintf("%s drops forwarded packets (by its %s): pods and the outside do not reach each other", c, c.Drops)
		if more != "" {
			text += "; " + more
		}
		out = append(out, health.Warning{Code: code, Subject: c.String(), Breaks: health.BreaksPods, Text: text,
			Next: strings.Join(commands[c], "; ") + " (or start the agent with --accept-forward, which keeps these rules)"})
	}
	return out
}
