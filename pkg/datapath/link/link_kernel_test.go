package link

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

func pair(pod *testutils.Netns) Pair {
	return Pair{
		HostName: HostName("container", "eth0"), PodName: "eth0", NetNS: pod.FD(), MTU: 1400,
		HostMAC: types.MAC{2, 0, 0, 0, 0, 1}, PodMAC: types.MAC{2, 0, 0, 0, 0, 2},
	}
}

func create(t *testing.T, pod *testutils.Netns) Host {
	t.Helper()
	h, err := CreateVeth(t.Context(), pair(pod))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Delete(h.Name); err != nil {
			t.Error(err)
		}
	})
	return h
}

func TestANewPairIsDownSilentAndBornInThePod(t *testing.T) {
	testutils.Kernel(t)
	pod := testutils.NewNetns(t)
	h := create(t, pod)
	if h.Up || h.MTU != 1400 || h.MAC != pair(pod).HostMAC || h.Index == 0 || h.PeerIndex == 0 {
		t.Errorf("host side: %+v", h)
	}
	l, err := netlink.LinkByName(h.Name)
	if err != nil {
		t.Fatal(err)
	}
	if l.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		t.Error("the host side does ARP")
	}
	if mode, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + h.Name + "/addr_gen_mode"); err != nil || strings.TrimSpace(string(mode)) != "1" {
		t.Errorf("addr_gen_mode %q, %v", mode, err)
	}
	pod.Do(t, func() {
		p, err := ByName("eth0")
		if err != nil || p.Up || p.MTU != 1400 || p.MAC != pair(pod).PodMAC || p.Index != h.PeerIndex {
			t.Errorf("pod side: %+v, %v", p, err)
		}
	})
	if err := SetUp(h.Index); err != nil {
		t.Fatal(err)
	}
	if addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL); err != nil || len(addrs) != 0 {
		t.Errorf("addresses on the host side when up: %v, %v", addrs, err)
	}
	if err := SetDown(h.Index); err != nil {
		t.Fatal(err)
	}
	if h, err = ByIndex(h.Index); err != nil || h.Up {
		t.Errorf("afterwards: %+v, %v", h, err)
	}
}

func TestATakenNameIsNamed(t *testing.T) {
	testutils.Kernel(t)
	pod := testutils.NewNetns(t)
	create(t, pod)
	if _, err := CreateVeth(t.Context(), pair(pod)); !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "host side") {
		t.Errorf("the host side's name: %v", err)
	}
	other := pair(pod)
	other.HostName = HostName("another", "eth0")
	if _, err := CreateVeth(t.Context(), other); !errors.Is(err, ErrPodInterfaceExists) {
		t.Errorf("the pod side's name: %v", err)
	}
	if hosts, err := List(); err != nil || len(hosts) != 1 {
		t.Errorf("links of ours: %v, %v", hosts, err)
	}
}

func TestAPairThatCannotBeFinishedLeavesNothing(t *testing.T) {
	testutils.Kernel(t)
	pod := testutils.NewNetns(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := CreateVeth(ctx, pair(pod)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	p := pair(pod)
	p.MTU = 0
	if _, err := CreateVeth(t.Context(), p); err == nil {
		t.Error("no MTU was accepted")
	}
	p = pair(pod)
	p.NetNS = 0 // not a namespace
	if _, err := CreateVeth(t.Context(), p); err == nil {
		t.Error("a descriptor of something else was accepted")
	}
	if hosts, err := List(); err != nil || len(hosts) != 0 {
		t.Errorf("left behind: %v, %v", hosts, err)
	}
}

func TestListKnowsOursByName(t *testing.T) {
	testutils.Kernel(t)
	pod := testutils.NewNetns(t)
	h := create(t, pod)
	for _, name := range []string{"lxc", "lxcbr0", "lxc0123456789ag", "lxc0123456789AB"} {
		testutils.VethPair(t, name, pod, "p"+name[3:])
	}
	hosts, err := List()
	if err != nil || len(hosts) != 1 || hosts[0] != h {
		t.Errorf("listed %+v, %v; want %+v", hosts, err, h)
	}
}

func TestWhatIsGoneIsNoErrorToDeleteAndNamedElsewhere(t *testing.T) {
	testutils.Kernel(t)
	if err := Delete("lxc000000000000"); err != nil {
		t.Error(err)
	}
	_, byName := ByName("lxc000000000000")
	_, byNumber := ByIndex(4711)
	for _, err := range []error{byName, byNumber, SetUp(4711), SetDown(4711), SetSilent(4711)} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAPodIsConfiguredOnceAndChecked(t *testing.T) {
	testutils.Kernel(t)
	pod := testutils.NewNetns(t)
	h := create(t, pod)
	pod.Do(t, func() { // as some runtimes leave it
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	})
	p := Pod{NetNS: pod.FD(), IfName: "eth0", MTU: 1400, MAC: pair(pod).PodMAC,
		Addrs: []netip.Addr{netip.MustParseAddr("10.7.0.9"), netip.MustParseAddr("fd07::9")}}
	before := CheckPod(t.Context(), p)
	for _, want := range []string{"is down", "10.7.0.9 is missing", "fd07::9 is missing", "169.254.1.1 is missing", "fe80::1 is missing"} {
		if before == nil || !strings.Contains(before.Error(), want) {
			t.Errorf("before: %q is not in %v", want, before)
		}
	}
	for range 2 {
		if err := ConfigurePod(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := CheckPod(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	if err := SetUp(h.Index); err != nil {
		t.Fatal(err)
	}
	pod.Do(t, func() {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if a.IP.IsGlobalUnicast() && a.Flags&unix.IFA_F_TENTATIVE != 0 {
				t.Errorf("%s waits for duplicate address detection", a.IP)
			}
		}
		if err := netlink.LinkSetDown(l); err != nil { // takes the routes along
			t.Fatal(err)
		}
	})
	wrong := p
	wrong.MAC, wrong.MTU = types.MAC{2, 9, 9, 9, 9, 9}, 1500
	after := CheckPod(t.Context(), wrong)
	for _, want := range []string{"is down", "02:09:09:09:09:09", "MTU 1400, not 1500", "169.254.1.1 is missing"} {
		if after == nil || !strings.Contains(after.Error(), want) {
			t.Errorf("after: %q is not in %v", want, after)
		}
	}
}

func TestAPodOfOneFamilyGetsNothingOfTheOther(t *testing.T) {
	testutils.Kernel(t)
	pod := testutils.NewNetns(t)
	create(t, pod)
	if err := ConfigurePod(t.Context(), Pod{NetNS: pod.FD(), IfName: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.7.0.9")}}); err != nil {
		t.Fatal(err)
	}
	pod.Do(t, func() {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if isDefault(r) {
				t.Errorf("route %s", r)
			}
		}
	})
	if err := ConfigurePod(t.Context(), Pod{NetNS: pod.FD(), IfName: "eth1"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such interface: %v", err)
	}
}
