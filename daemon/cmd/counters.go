package cmd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// counters adds up, per endpoint and rule, the packets and bytes of the flows
// that the rule allowed: those that are open as the kernel has them, those that
// ended as the sweep found them. A flow that the kernel pushed out of a full
// table, and what ended under an earlier agent, is not in them.
type counters struct {
	rule func(policytypes.RuleID) (policytypes.RuleRef, bool)
	at   func(netip.Addr) (endpoint uint16, ok bool) // that has an address
	maps *kernelMaps

	mu    sync.Mutex
	ended map[counterKey]volume
}

// counterKey is what is counted apart.
type counterKey struct {
	endpoint  uint16
	direction policytypes.Direction
	rule      policytypes.RuleID
}

type volume struct{ packets, bytes uint64 }

// sweep removes expired flows and keeps what they carried.
func (c *counters) sweep() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.maps.sweepFlows(func(f ctmap.Flow) { c.add(c.ended, f) })
}

func (c *counters) add(to map[counterKey]volume, f ctmap.Flow) {
	for _, side := range []struct {
		direction policytypes.Direction
		addr      netip.Addr
		rule      uint32
	}{{policytypes.Egress, f.Initiator.Addr(), f.EgressRule}, {policytypes.Ingress, f.Responder.Addr(), f.IngressRule}} {
		if side.rule == 0 {
			continue
		}
		if id, ok := c.at(side.addr); ok {
			k := counterKey{id, side.direction, policytypes.RuleID(side.rule)}
			v := to[k]
			to[k] = volume{v.packets + f.Packets, v.bytes + f.Bytes}
		}
	}
}

// of are the counters of an endpoint, ingress first, then by number of the rule.
func (c *counters) of(endpoint uint16) ([]gen.RuleCounter, error) {
	c.mu.Lock() // so that no flow is counted as open and as ended
	defer c.mu.Unlock()
	sums := map[counterKey]volume{}
	each := func(f ctmap.Flow) bool { c.add(sums, f); return true }
	if err := errors.Join(c.maps.CT4.Each(each), c.maps.CT6.Each(each)); err != nil {
		return nil, fmt.Errorf("reading the open flows of endpoint %d: %w", endpoint, err)
	}
	for k, v := range c.ended {
		sums[k] = volume{sums[k].packets + v.packets, sums[k].bytes + v.bytes}
	}
	out := []gen.RuleCounter{}
	for k, v := range sums {
		if k.endpoint != endpoint {
			continue
		}
		r := gen.RuleCounter{Direction: gen.Direction(k.direction.String()), Rule: gen.Rule{ID: uint32(k.rule)}, Packets: v.packets, Bytes: v.bytes}
		if ref, ok := c.rule(k.rule); ok {
			r.Rule = api.RuleModel(k.rule, ref)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b gen.RuleCounter) int {
		return cmp.Or(-cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Rule.ID, b.Rule.ID))
	})
	return out, nil
}

// forget drops the counters of an endpoint that went; its number may be given again.
func (c *counters) forget(endpoint uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.ended {
		if k.endpoint == endpoint {
			delete(c.ended, k)
		}
	}
}
