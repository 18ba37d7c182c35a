package upkeep

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/health"
)

// Pool is the prefix of one family's pods.
type Pool struct {
	Setting string // its name, for people
	Prefix  netip.Prefix
	Gateway netip.Addr // of the node in it
}

// surroundings are the networks that the node is connected to.
type surroundings struct {
	networks []route.Network
	defaults []route.Default
}

func look() (s surroundings, err error) {
	if s.networks, err = route.Networks(); err == nil {
		s.defaults, err = route.Defaults()
	}
	return s, err
}

func (s surroundings) overlaps(p Pool) []route.Overlap {
	return route.Overlaps(p.Prefix, s.networks, s.defaults)
}

// Overlaps refuses, the first time, a pool that takes in the network of the
// default gateway, and tells of other networks of the node that a pool has
// addresses of. allow: the gateway's is told of, too. routers hears the next hops
// of the node's default routes each time.
func Overlaps(pools []Pool, allow bool, routers func([]netip.Addr)) Step {
	const code = "pool-overlap"
	first := true
	ensure := func(context.Context) (Result, error) {
		s, err := look()
		if err != nil {
			return Result{}, err
		}
		var hops []netip.Addr
		for _, d := range s.defaults {
			if d.Via.IsValid() {
				hops = append(hops, d.Via)
			}
		}
		routers(hops)
		var r Result
		for _, p := range pools {
			if first {
				if err := refuse(p, s, allow); err != nil {
					return Result{}, err
				}
			}
			for _, o := range s.overlaps(p) {
				w := health.Warning{Code: code, Subject: p.Prefix.String() + " " + o.Link + " " + o.Prefix.String(), Breaks: health.BreaksPods,
					Text: fmt.Sprintf("%s %s shares addresses with %s of link %s: an address of the pool may be somebody else's there, and packets to one that no pod has may leave the node", p.Setting, p.Prefix, o.Prefix, o.Link),
					Next: "give the pods a prefix that no link of the node is connected to"}
				if o.Gateway && allow {
					w.Breaks, w.Next = health.BreaksNothing, "see to it that nobody else uses the pool's addresses; --allow-pool-overlap lets it be so"
				}
				r.Warnings = append(r.Warnings, w)
			}
		}
		first = false
		return r, nil
	}
	return Step{Name: "Pools and networks", Ensure: ensure, Codes: []string{code}}
}

// refuse is the error of a pool that would cost the node its own network.
func refuse(p Pool, s surroundings, allow bool) error {
	for _, d := range s.defaults {
		if d.Via == p.Gateway {
			return fmt.Errorf("%s: %s, the node's address in the pool, is the router of the default route by %s; give the pods another prefix", p.Setting, p.Gateway, d.Link)
		}
	}
	for _, o := range s.overlaps(p) {
		if o.Gateway && !allow {
			return fmt.Errorf("%s: %s contains %s, the network of the default gateway's link %s, where other machines have addresses of it; give the pods another prefix, or start with --allow-pool-overlap if nobody there uses them", p.Setting, p.Prefix, o.Prefix, o.Link)
		}
	}
	return nil
}

// Addresses keeps the node's own address in each pool.
func Addresses(pools []Pool) Step {
	return Step{Name: "Addresses of the node",
		Ensure: func(context.Context) (r Result, err error) {
			for _, p := range pools {
				changed, err := link.EnsureNodeAddress(p.Gateway)
				if err != nil {
					return r, err
				}
				if changed {
					r.Changed = append(r.Changed, "the node's address "+p.Gateway.String()+" was removed")
				}
			}
			return r, nil
		},
		Undo: func(context.Context) error {
			var errs []error
			for _, p := range pools {
				errs = append(errs, link.RemoveNodeAddress(p.Gateway))
			}
			return errors.Join(errs...)
		},
		List: func(context.Context) (out []string, err error) {
			for _, p := range pools {
				out = append(out, "address "+p.Gateway.String()+" on lo")
			}
			return out, nil
		}}
}

// Routes ends packets to addresses of the pools that no pod has, where no network
// of the node has them.
func Routes(table route.Table, pools []Pool) Step {
	return Step{Name: "Routes of the pools",
		Ensure: func(context.Context) (Result, error) {
			s, err := look()
			if err != nil {
				return Result{}, err
			}
			var r Result
			var keep []netip.Prefix
			for _, p := range pools {
				if len(s.overlaps(p)) == 0 {
					keep = append(keep, p.Prefix)
				}
			}
			if err := table.RemoveUnreachable(keep...); err != nil {
				return r, err
			}
			for _, p := range keep {
				changed, err := table.EnsureUnreachable(p)
				if err != nil {
					return r, err
				}
				if changed {
					r.Changed = append(r.Changed, "the unreachable route of pool "+p.String()+" was missing")
				}
			}
			return r, nil
		},
		Undo: func(context.Context) error { return table.RemoveUnreachable() },
		List: func(context.Context) (out []string, err error) {
			have, err := table.Unreachable()
			for _, p := range have {
				out = append(out, "unreachable route of pool "+p.String())
			}
			return out, err
		}}
}

// prefixes of pools.
func prefixes(pools []Pool) []netip.Prefix {
	out := make([]netip.Prefix, len(pools))
	for i, p := range pools {
		out[i] = p.Prefix
	}
	return slices.Clip(out)
}
