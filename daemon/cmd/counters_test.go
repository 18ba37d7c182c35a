package cmd

import (
	"net/netip"
	"testing"

	"github.com/weirnet/weir/pkg/maps/ctmap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

func TestCountersGoToTheEndsThatAreEndpoints(t *testing.T) {
	a, b, outside := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("192.0.2.1")
	c := &counters{ended: map[counterKey]volume{}, at: func(x netip.Addr) (uint16, bool) {
		id, ok := map[netip.Addr]uint16{a: 7, b: 8}[x]
		return id, ok
	}}
	flow := func(from, to netip.Addr, egress, ingress uint32) ctmap.Flow {
		return ctmap.Flow{Initiator: netip.AddrPortFrom(from, 1), Responder: netip.AddrPortFrom(to, 2), EgressRule: egress, IngressRule: ingress, Packets: 3, Bytes: 100}
	}
	for _, f := range []ctmap.Flow{flow(a, b, 5, 6), flow(a, outside, 5, 0), flow(outside, a, 0, 9), flow(a, outside, 5, 4)} {
		c.add(c.ended, f)
	}
	want := map[counterKey]volume{
		{7, policytypes.Egress, 5}: {9, 300}, {8, policytypes.Ingress, 6}: {3, 100}, {7, policytypes.Ingress, 9}: {3, 100},
	}
	if len(c.ended) != len(want) {
		t.Errorf("counted %v", c.ended)
	}
	for k, v := range want {
		if c.ended[k] != v {
			t.Errorf("%+v: %v, want %v", k, c.ended[k], v)
		}
	}
	c.forget(7)
	if len(c.ended) != 1 {
		t.Errorf("after endpoint 7 went: %v", c.ended)
	}
}
