package cmd

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/upkeep"
)

// foreign are the addresses that no pod may get: of this node, of its routers, of
// the nodes that have an object.
func (l *leases) foreign() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for node := range l.tables.Nodes.All(l.tables.DB.ReadTxn()) {
		for _, a := range node.Addresses {
			if !node.APIServer {
				out[a.Unmap()] = "node " + node.Name
			}
		}
	}
	if routers := l.routers.Load(); routers != nil {
		for _, a := range *routers {
			out[a] = "the router of the node's default route"
		}
	}
	for _, a := range l.own() {
		out[a] = "this node"
	}
	return out
}

// conflicts tells of leased addresses that belong to others by now.
func (l *leases) conflicts() upkeep.Step {
	const code = "address-conflict"
	return upkeep.Step{Name: "Leases", Codes: []string{code}, Ensure: func(context.Context) (r upkeep.Result, err error) {
		conflicts := l.Conflicts()
		for _, a := range slices.SortedFunc(maps.Keys(conflicts), netip.Addr.Compare) {
			r.Warnings = append(r.Warnings, health.Warning{Code: code, Subject: a.String(), Breaks: health.BreaksPods,
				Text: fmt.Sprintf("endpoint %d has the address %s, which belongs to %s too", l.user(a), a, conflicts[a]), Next: "delete that pod, or take the address from the other"})
		}
		return r, nil
	}}
}
