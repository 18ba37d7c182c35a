package ctmap

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	testutils.SameStructs(t, map[string]any{"ct4_key": key4{}, "ct6_key": key6{}, "ct_entry": entry{}, "frag_key": fragKey{}, "frag_entry": fragEntry{}})
}

func TestTheMapIsTheOneOfC(t *testing.T) {
	testutils.SameMap(t, spec(IPv4, DefaultEntries))
	testutils.SameMap(t, spec(IPv6, DefaultEntries))
	testutils.SameMap(t, fragmentsSpec())
	testutils.SameMap(t, formerSpec(IPv4))
	testutils.SameMap(t, formerSpec(IPv6))
}

func TestAFlowIsSeenFromItsInitiator(t *testing.T) {
	for _, c := range []struct {
		name      string
		family    Family
		low, high string
	}{
		{"IPv4", IPv4, "10.0.0.1:80", "10.0.0.2:40000"},
		{"IPv6", IPv6, "[fd00::1]:80", "[fd00::2]:40000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, root := newMap(t, c.family, 0)
			low, high := netip.MustParseAddrPort(c.low), netip.MustParseAddrPort(c.high)
			e := entry{
				Packets: 3, Bytes: 300, Expires: 77, Flags: initiatorIs1 | seenReply | closingResp,
				EgressRevision: 5, IngressRevision: 6, EgressRule: 7, IngressRule: 8,
			}
			put(t, m, low, high, 6, e)
			m.Close()
			m, err := Open(root, c.family) // a restarted agent
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			got, err := m.Dump()
			if err != nil || len(got) != 1 {
				t.Fatalf("dump %v, %v", got, err)
			}
			want := Flow{
				Initiator: high, Responder: low, Protocol: 6, Packets: 3, Bytes: 300, Expires: 77,
				SeenReply: true, ResponderClosing: true,
				EgressRevision: 5, IngressRevision: 6, EgressRule: 7, IngressRule: 8,
			}
			if got[0] != want {
				t.Errorf("got  %+v\nwant %+v", got[0], want)
			}
			e.Flags = established | closingInit
			put(t, m, low, high, 6, e)
			got, _ = m.Dump()
			if f := got[0]; f.Initiator != low || f.Responder != high || !f.Established || !f.InitiatorClosing || f.SeenReply {
				t.Errorf("opened from side 0, got %+v", f)
			}
		})
	}
}

func TestGCDeletesTheExpiredOnlyAndTellsOfThem(t *testing.T) {
	m, _ := newMap(t, IPv4, 20000)
	defer m.Close()
	const n = 10000 // several chunks
	for i := range n {
		put(t, m, addrPort(1, i), addrPort(2, 80), 6, entry{Expires: uint32(i)})
	}
	told := map[uint32]int{}
	deleted, left, err := m.GC(2499, func(f Flow) { told[f.Expires]++ })
	if err != nil || deleted != 2500 || left != n-2500 || len(told) != 2500 {
		t.Fatalf("deleted %d, left %d, told of %d, %v", deleted, left, len(told), err)
	}
	still := 0
	if err := m.Each(func(f Flow) bool {
		still++
		if f.Expires < 2500 || told[f.Expires] != 0 {
			t.Errorf("left: %+v", f)
			return false
		}
		return true
	}); err != nil || still != n-2500 {
		t.Fatalf("%d flows are left, %v", still, err)
	}
	if deleted, _, err := m.GC(0, func(Flow) {}); err != nil || deleted != 0 {
		t.Errorf("nothing is expired at 0, deleted %d, %v", deleted, err)
	}
}

func TestAReusedAddressLosesItsFlows(t *testing.T) {
	m, _ := newMap(t, IPv4, 0)
	defer m.Close()
	put(t, m, addrPort(1, 1000), addrPort(2, 80), 6, entry{Expires: 9})
	put(t, m, addrPort(2, 1000), addrPort(3, 80), 17, entry{Expires: 9, Flags: initiatorIs1})
	put(t, m, addrPort(1, 1000), addrPort(3, 80), 6, entry{Expires: 9})
	n, err := m.Purge(addrPort(2, 0).Addr())
	if err != nil || n != 2 {
		t.Errorf("purged %d, %v, want 2", n, err)
	}
	flows, _ := m.Dump()
	if len(flows) != 1 || flows[0].Responder != addrPort(3, 80) {
		t.Errorf("left: %+v", flows)
	}
	if n, err := m.Purge(netip.MustParseAddr("fd00::1")); n != 0 || err != nil {
		t.Errorf("an address of the other family: %d, %v", n, err)
	}
}

func TestReadersAndSweepersRunBesideWriters(t *testing.T) {
	m, _ := newMap(t, IPv6, 4096)
	defer m.Close()
	a, b := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 8000 {
			put(t, m, netip.AddrPortFrom(a, uint16(i)), netip.AddrPortFrom(b, 53), 17, entry{Expires: uint32(i)})
		}
	})
	for range 2 {
		wg.Go(func() {
			for i := range uint32(40) {
				if _, _, err := m.GC(i*200, func(Flow) {}); err != nil {
					t.Error(err)
				}
				if _, err := m.Dump(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, left, err := m.GC(8000, func(Flow) {}); left != 0 || err != nil {
		t.Errorf("%d flows outlived the last sweep, %v", left, err)
	}
}

func TestFragmentsAndMemory(t *testing.T) {
	m, root := newMap(t, IPv6, 0)
	defer m.Close()
	f, err := OpenOrCreateFragments(root)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(FragmentsName))
	defer f.Close()
	if got := m.MemoryBytes(); got != DefaultEntries*144 {
		t.Errorf("weir_ct6 takes %d bytes", got)
	}
	if got := f.MemoryBytes(); got != FragmentsEntries*112 {
		t.Errorf("weir_frag takes %d bytes", got)
	}
}

func newMap(t *testing.T, f Family, maxEntries uint32) (*Map, bpf.Root) {
	t.Helper()
	root, err := bpf.OpenRoot(testutils.Kernel(t).BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenOrCreate(root, f, maxEntries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root.Map("")) })
	return m, root
}

// put writes an entry as the programs do; low is side 0.
func put(t *testing.T, m *Map, low, high netip.AddrPort, proto uint8, e entry) {
	t.Helper()
	if m.family == IPv4 {
		k := key4{Protocol: proto}
		for i, ap := range []netip.AddrPort{low, high} {
			k.Addr[i] = ap.Addr().As4()
			binary.BigEndian.PutUint16(k.Port[i][:], ap.Port())
		}
		if err := m.m.Put(&k, &e); err != nil {
			t.Error(err)
		}
		return
	}
	k := key6{Protocol: proto}
	for i, ap := range []netip.AddrPort{low, high} {
		k.Addr[i] = ap.Addr().As16()
		binary.BigEndian.PutUint16(k.Port[i][:], ap.Port())
	}
	if err := m.m.Put(&k, &e); err != nil {
		t.Error(err)
	}
}

func addrPort(host byte, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), uint16(port))
}

func six(host, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(host)}), uint16(port))
}
