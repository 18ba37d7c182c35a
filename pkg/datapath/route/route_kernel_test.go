package route

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/testutils"
)

func twoLinks(t *testing.T) (a, b int) {
	t.Helper()
	pod := testutils.NewNetns(t)
	return testutils.VethPair(t, "lxca", pod, "eth0").Attrs().Index, testutils.VethPair(t, "lxcb", pod, "eth1").Attrs().Index
}

func TestARouteIsMadeMovedListedAndRemoved(t *testing.T) {
	testutils.Kernel(t)
	a, b := twoLinks(t)
	for _, table := range []Table{MainTable, 2005} {
		v4, v6 := netip.MustParseAddr("10.3.0.7"), netip.MustParseAddr("fd03::7")
		for _, link := range []int{a, a, b, a} {
			for _, addr := range []netip.Addr{v4, v6} {
				if err := table.Ensure(addr, link); err != nil {
					t.Fatal(err)
				}
			}
			got, err := table.List()
			if err != nil || len(got) != 2 || got[0] != (Route{v4, link}) || got[1] != (Route{v6, link}) {
				t.Fatalf("table %d: %v, %v; want both through link %d", table, got, err, link)
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: int(table), Protocol: protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil || len(routes) != 1 || routes[0].Scope != netlink.SCOPE_LINK || routes[0].Dst.String() != "10.3.0.7/32" {
			t.Errorf("the kernel's route: %v, %v", routes, err)
		}
		for range 2 {
			if err := errors.Join(table.Remove(v4), table.Remove(v6)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := table.List(); err != nil || len(got) != 0 {
			t.Errorf("left: %v, %v", got, err)
		}
	}
}

func TestARouteOfSomebodyElseStays(t *testing.T) {
	testutils.Kernel(t)
	a, b := twoLinks(t)
	for _, text := range []string{"10.3.0.8", "fd03::8"} {
		addr := netip.MustParseAddr(text)
		foreign := &netlink.Route{LinkIndex: a, Dst: hostNet(addr), Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_STATIC}
		if err := netlink.RouteAdd(foreign); err != nil {
			t.Fatal(err)
		}
		table := Table(MainTable)
		if err := table.Ensure(addr, b); !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "static") {
			t.Errorf("%s: %v", addr, err)
		}
		if err := table.Remove(addr); err != nil {
			t.Error(err)
		}
		left, err := table.lookup(addr)
		if err != nil || len(left) != 1 || left[0].LinkIndex != a || left[0].Protocol != unix.RTPROT_STATIC {
			t.Errorf("%s: %v, %v", addr, left, err)
		}
		if got, err := table.List(); err != nil || len(got) != 0 {
			t.Errorf("listed as ours: %v, %v", got, err)
		}
	}
}

func TestALinkThatIsGoneIsAnError(t *testing.T) {
	testutils.Kernel(t)
	if err := Table(MainTable).Ensure(netip.MustParseAddr("10.3.0.9"), 4711); err == nil {
		t.Error("a route through no link was made")
	}
}
