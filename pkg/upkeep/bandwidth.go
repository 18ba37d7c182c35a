package upkeep

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/health"
)

// Bandwidth tells of a token bucket on the link of a pod, as a chained bandwidth
// plugin puts it there: packets between pods of the node do not pass by it.
func Bandwidth() Step {
	const code = "bandwidth-plugin"
	return Step{Name: "Bandwidth of pods", Codes: []string{code}, Ensure: func(context.Context) (r Result, err error) {
		hosts, err := link.List()
		if err != nil {
			return r, err
		}
		names := map[int]string{}
		for _, h := range hosts {
			names[h.Index] = h.Name
		}
		qdiscs, err := netlink.QdiscList(nil)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return r, fmt.Errorf("list the queueing disciplines of links: %w", err)
		}
		for _, q := range qdiscs {
			name := names[q.Attrs().LinkIndex]
			if name == "" || q.Type() != "tbf" {
				continue
			}
			r.Warnings = append(r.Warnings, health.Warning{Code: code, Subject: name, Breaks: health.BreaksPods,
				Text: "link " + name + " has the token bucket of a chained bandwidth plugin, whose limit does not hold between pods of this node",
				Next: "take the bandwidth plugin out of the CNI configuration; its limit of what pods send cannot be set beside Weir's programs at all"})
		}
		return r, nil
	}}
}
