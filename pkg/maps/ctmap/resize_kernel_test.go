package ctmap

import (
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// shown is the number of the map that the programs see as the former one; 0: none.
func shown(t *testing.T, m *Map) (id ebpf.MapID) {
	t.Helper()
	if err := m.FormerMap().Lookup(uint32(0), &id); err != nil && id != 0 {
		t.Fatal(err)
	}
	return id
}

func again(t *testing.T, root bpf.Root, f Family, room uint32) *Map {
	t.Helper()
	m, err := OpenOrCreate(root, f, room)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestFlowsMoveToAMapOfAnotherSize(t *testing.T) {
	for _, f := range []Family{IPv4, IPv6} {
		old, root := newMap(t, f, 1024)
		now := uint32(bpf.FlowTime().Seconds())
		host := func(n int) (low, high [2]int) { return [2]int{1, 1000 + n}, [2]int{2, 80} }
		write := func(m *Map, n int, e entry) {
			low, high := host(n)
			a, b := addrPort(byte(low[0]), low[1]), addrPort(byte(high[0]), high[1])
			if f == IPv6 {
				a, b = six(low[0], low[1]), six(high[0], high[1])
			}
			put(t, m, a, b, 6, e)
		}
		// A flow that no packet moved, one that has expired, one that a packet moved and
		// that has closed since, one that only former programs saw of late.
		for n := range 4 {
			write(old, n, entry{Packets: 10, Expires: now + 1000, EgressRevision: 7})
		}
		write(old, 1, entry{Packets: 10, Expires: now})
		if id := shown(t, old); id != 0 || old.Former() != nil || old.FormerBytes() != 0 {
			t.Errorf("a map of one size: %d is shown as a former one", id)
		}
		old.Close()
		m := again(t, root, f, 2048)
		former := m.Former()
		if former == nil || shown(t, m) == 0 || m.Map().MaxEntries() != 2048 || m.FormerBytes() == 0 {
			t.Fatalf("another size: %s is shown as a former one", former)
		}
		write(m, 2, entry{Packets: 12, Expires: now + 5})
		write(m, 3, entry{Packets: 11, Expires: now})
		m.Close()
		m = again(t, root, f, 4096) // an agent that died, and another size
		if m.Map().MaxEntries() != 2048 || shown(t, m) == 0 {
			t.Errorf("in the middle of a change: %s", m.Map())
		}
		if err := m.TakeOver(); err != nil {
			t.Fatal(err)
		}
		got, err := m.Dump()
		packets := map[uint16]uint64{}
		for _, f := range got {
			packets[f.Initiator.Port()-1000] = f.Packets
			if f.Initiator.Port() == 1000 && (f.EgressRevision != 7 || f.Expires != now+1000) {
				t.Errorf("moved: %+v", f)
			}
		}
		if err != nil || len(got) != 3 || packets[0] != 10 || packets[2] != 12 || packets[3] != 10 {
			t.Errorf("flows and packets %v, %v", packets, err)
		}
		if pins, _ := os.ReadDir(root.Map("")); shown(t, m) != 0 || m.Former() != nil || len(pins) != 2 {
			t.Errorf("the former map is still there: %v", pins)
		}
		if err := m.TakeOver(); err != nil {
			t.Errorf("nothing to take over: %v", err)
		}
		if err := os.RemoveAll(root.Map("")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnAddressIsForgottenInBothMaps(t *testing.T) {
	old, root := newMap(t, IPv4, 1024)
	put(t, old, addrPort(1, 1000), addrPort(2, 80), 6, entry{Expires: ^uint32(0)})
	put(t, old, addrPort(1, 1000), addrPort(3, 80), 6, entry{Expires: ^uint32(0)})
	old.Close()
	m := again(t, root, IPv4, 2048)
	put(t, m, addrPort(2, 1000), addrPort(3, 80), 6, entry{Expires: ^uint32(0)})
	if _, err := m.Purge(addrPort(2, 0).Addr()); err != nil {
		t.Fatal(err)
	}
	if err := m.TakeOver(); err != nil {
		t.Fatal(err)
	}
	if flows, err := m.Dump(); err != nil || len(flows) != 1 || flows[0].Responder != addrPort(3, 80) {
		t.Errorf("left: %+v, %v", flows, err)
	}
}

// The pin goes before the programs stop to look into the former map.
func TestAFormerMapWithoutAPinIsHidden(t *testing.T) {
	old, root := newMap(t, IPv4, 1024)
	old.Close()
	m := again(t, root, IPv4, 2048)
	if err := os.Remove(root.Map(Name4) + "_former"); err != nil || shown(t, m) == 0 {
		t.Fatal(err)
	}
	m.Close()
	if m = again(t, root, IPv4, 2048); shown(t, m) != 0 || m.Former() != nil {
		t.Error("it is still shown")
	}
}

func TestASmallerMapTakesWhatFits(t *testing.T) {
	old, root := newMap(t, IPv4, 4096)
	defer old.Close()
	for i := range 900 {
		put(t, old, addrPort(1, 1000+i), addrPort(2, 80), 6, entry{Expires: ^uint32(0)})
		put(t, old, addrPort(1, 1000+i), addrPort(3, 80), 6, entry{}) // expired at boot
	}
	_, err := OpenOrCreate(root, IPv4, 1100)
	if err == nil || !strings.Contains(err.Error(), "holds 900 live flows; give conntrack-entries at least 1200") {
		t.Errorf("too small: %v", err)
	}
	m := again(t, root, IPv4, 1200)
	if err := m.TakeOver(); err != nil {
		t.Fatal(err)
	}
	if flows, err := m.Dump(); err != nil || len(flows) != 900 {
		t.Errorf("%d flows fit, %v", len(flows), err)
	}
	// More than there was is never too little.
	for i := range 200 {
		put(t, m, addrPort(4, 1000+i), addrPort(2, 80), 6, entry{Expires: ^uint32(0)})
	}
	if m = again(t, root, IPv4, 1201); m.Former() == nil {
		t.Error("one more is refused")
	}
}
