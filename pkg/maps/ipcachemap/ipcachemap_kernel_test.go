package ipcachemap

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	testutils.SameStructs(t, map[string]any{"ipcache_key": key{}, "ipcache_entry": Entry{}})
}

func TestTheMapIsTheOneOfC(t *testing.T) {
	testutils.SameMap(t, spec(DefaultEntries))
}

func TestKeysAndPrefixesAreOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")
		addr := netip.AddrFrom16([16]byte(b))
		if rapid.Bool().Draw(t, "v4") {
			addr = netip.AddrFrom4([4]byte(b[:4]))
		} else if addr.Is4In6() {
			return
		}
		p := netip.PrefixFrom(addr, rapid.IntRange(0, addr.BitLen()).Draw(t, "bits"))
		k, err := makeKey(p)
		if err != nil || k.prefix() != p.Masked() {
			t.Fatalf("%s became %s, %v", p, k.prefix(), err)
		}
	})
}

func TestTheLongestPrefixOfTheFamilyWins(t *testing.T) {
	root := openRoot(t)
	m, err := OpenOrCreate(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	want := map[netip.Prefix]Entry{
		netip.MustParsePrefix("0.0.0.0/0"):   {Identity: 9},
		netip.MustParsePrefix("10.0.0.0/8"):  {Identity: 16777217, PrefixIdentity: 16777217},
		netip.MustParsePrefix("10.1.2.3/32"): {Identity: 1000, PrefixIdentity: 16777217},
		netip.MustParsePrefix("::/0"):        {Identity: 10},
		netip.MustParsePrefix("a00::/8"):     {Identity: 16777218}, // the same first byte as 10.0.0.0/8
	}
	if err := m.Upsert(want); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if m, err = Open(root); err != nil { // a restarted agent
		t.Fatal(err)
	}
	defer m.Close()
	for addr, identity := range map[string]uint32{
		"10.1.2.3": 1000, "10.1.2.4": 16777217, "11.0.0.1": 9, "a00::1": 16777218, "fd00::1": 10, "::ffff:10.1.2.3": 1000,
	} {
		e, found, err := m.Lookup(netip.MustParseAddr(addr))
		if err != nil || !found || e.Identity != identity {
			t.Errorf("%s has %+v, %v, %v, want %d", addr, e, found, err, identity)
		}
	}
	if got, err := m.Dump(); err != nil || !maps.Equal(got, want) {
		t.Errorf("dump %v, %v", got, err)
	}
	if mem, err := m.MemoryBytes(); err != nil || mem != 5*entryBytes {
		t.Errorf("memory %d, %v", mem, err)
	}
	gone := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("0.0.0.0/0")}
	for range 2 {
		if err := m.Delete(gone...); err != nil {
			t.Fatal(err)
		}
	}
	if e, _, _ := m.Lookup(netip.MustParseAddr("10.1.2.3")); e.Identity != 16777217 {
		t.Errorf("after the delete 10.1.2.3 has %+v", e)
	}
	if _, found, err := m.Lookup(netip.MustParseAddr("11.0.0.1")); found || err != nil {
		t.Errorf("11.0.0.1 is found: %v, %v", found, err)
	}
	if err := errors.Join(m.Upsert(nil), m.Delete()); err != nil {
		t.Errorf("nothing to do: %v", err)
	}
	if m.Upsert(map[netip.Prefix]Entry{{}: {}}) == nil {
		t.Error("the zero prefix was taken")
	}
	if _, _, err := m.Lookup(netip.Addr{}); err == nil {
		t.Error("the zero address was looked up")
	}
}

// What others write with keys of their own making does not stay, nor hide an entry.
func TestKeysThatAreNoPrefixesGo(t *testing.T) {
	root := openRoot(t)
	m, err := OpenOrCreate(root, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	defer m.Close()
	want := map[netip.Prefix]Entry{netip.MustParsePrefix("10.0.0.0/8"): {Identity: 7}}
	if err := m.Upsert(want); err != nil {
		t.Fatal(err)
	}
	put := func(k key, identity uint32) {
		t.Helper()
		if err := m.m.Put(&k, &Entry{Identity: identity}); err != nil {
			t.Fatal(err)
		}
	}
	strange := []key{
		{}, // every address of both families
		{PrefixLen: 8, Family: familyV4},
		{PrefixLen: fixedBits + 33, Family: familyV4},
		{PrefixLen: fixedBits, Family: 3},
		{PrefixLen: fixedBits, Family: familyV4, Pad: [3]byte{1}},
		{PrefixLen: fixedBits + 96, Family: familyV6, Address: netip.MustParseAddr("::ffff:10.0.0.0").As16()},
	}
	for _, k := range strange {
		put(k, 1)
	}
	if _, found, err := m.Lookup(netip.MustParseAddr("192.0.2.1")); !found || err != nil {
		t.Errorf("no strange key covers 192.0.2.1: %v", err)
	}
	beside, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	for _, who := range []*Map{beside, m} { // one who only looks leaves them
		if got, err := who.Dump(); err != nil || !maps.Equal(got, want) {
			t.Errorf("dump %v, %v", got, err)
		}
		for _, k := range strange {
			if err := who.m.Lookup(&k, &Entry{}); who == beside && err != nil {
				t.Errorf("%+v: %v", k, err)
			}
		}
	}
	if _, found, err := m.Lookup(netip.MustParseAddr("192.0.2.1")); found || err != nil {
		t.Errorf("192.0.2.1 is still found: %v", err)
	}
	n := 0
	if err := bpf.Each(m.m, func(key, Entry) { n++ }); err != nil || n != 1 {
		t.Errorf("%d keys are left, %v", n, err)
	}
	put(key{PrefixLen: fixedBits + 8, Family: familyV4, Address: [16]byte{10, 0, 0, 1}}, 8) // the same prefix for the kernel
	want[netip.MustParsePrefix("10.0.0.0/8")] = Entry{Identity: 8}
	if got, err := m.Dump(); err != nil || !maps.Equal(got, want) {
		t.Errorf("dump %v, %v", got, err)
	}
}

func TestAFullMapSaysSo(t *testing.T) {
	root := openRoot(t)
	m, err := OpenOrCreate(root, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	defer m.Close()
	many := map[netip.Prefix]Entry{}
	for i := range 17 {
		many[netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/32", i))] = Entry{Identity: 1}
	}
	if err := m.Upsert(many); !errors.Is(err, ErrFull) {
		t.Errorf("17 prefixes into 16: %v", err)
	}
}

// Another limit at the next start takes the entries along; one that they do not fit
// is refused, and a map of another kind is not touched.
func TestAnotherLimitKeepsTheEntries(t *testing.T) {
	root := openRoot(t)
	defer os.Remove(root.Map(Name))
	all := map[netip.Prefix]Entry{}
	for i := range 16 {
		all[netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/32", i))] = Entry{Identity: uint32(i + 1), PrefixIdentity: 3}
	}
	open := func(room uint32) *Map {
		t.Helper()
		m, err := OpenOrCreate(root, room)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	if err := open(16).Upsert(all); err != nil {
		t.Fatal(err)
	}
	for _, room := range []uint32{32, 20, 16} {
		m := open(room)
		if got, err := m.Dump(); err != nil || !maps.Equal(got, all) || m.Map().MaxEntries() != room {
			t.Errorf("with room for %d: %v, %v", room, got, err)
		}
		if again := open(room); mapID(t, again) != mapID(t, m) {
			t.Errorf("room for %d, asked for twice, gave two maps", room)
		}
	}
	if _, err := OpenOrCreate(root, 15); err == nil || !strings.Contains(err.Error(), "holds 16 prefixes") {
		t.Errorf("less room than entries: %v", err)
	}
	if got, err := open(16).Dump(); err != nil || len(got) != 16 {
		t.Errorf("after that: %d entries, %v", len(got), err)
	}
	if err := os.Remove(root.Map(Name)); err != nil {
		t.Fatal(err)
	}
	other, err := bpf.OpenOrCreate(&ebpf.MapSpec{Name: Name, Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 4}, root.Map(Name))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var layout *bpf.LayoutError
	if _, err := OpenOrCreate(root, 32); !errors.As(err, &layout) {
		t.Errorf("a map of another kind: %v", err)
	}
}

func mapID(t *testing.T, m *Map) ebpf.MapID {
	t.Helper()
	info, err := m.Map().Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func openRoot(t *testing.T) bpf.Root {
	t.Helper()
	root, err := bpf.OpenRoot(testutils.Kernel(t).BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	return root
}
