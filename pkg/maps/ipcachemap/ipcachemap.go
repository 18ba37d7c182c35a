package ipcachemap

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// Name is the map's name and the last part of its pin path.
	Name = "weir_ipcache"
	// DefaultEntries is the room of the map unless another is given.
	DefaultEntries = 512000

	noPrealloc         = 1    // BPF_F_NO_PREALLOC
	familyV4, familyV6 = 1, 2 // FAMILY_* of bpf/lib/types.h
	fixedBits          = 32   // family and padding before the address
	entryBytes         = 122  // measured for a trie with keys and values of this size
)

// ErrFull is returned when the map has no room for an upsert.
var ErrFull = errors.New("the ipcache map is full; raise ipcache-entries")

// Entry is what the kernel knows of a prefix.
type Entry struct {
	Identity       uint32 // who; of an outside address, where
	PrefixIdentity uint32 // where; 0 if no prefix selector covers the address
}

// key is struct ipcache_key.
type key struct {
	PrefixLen uint32
	Family    uint8
	Pad       [3]byte
	Address   [16]byte
}

// Map is weir_ipcache. It is safe for concurrent use.
type Map struct {
	m     *ebpf.Map
	lock  bpf.UpdateLock
	owned bool // nobody else is to write to it
}

func spec(maxEntries uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: Name, Type: ebpf.LPMTrie, KeySize: 24, ValueSize: 8, MaxEntries: maxEntries, Flags: noPrealloc}
}

// Open opens the pinned map, whatever its room; the error wraps os.ErrNotExist
// if there is none.
func Open(root bpf.Root) (*Map, error) {
	m, err := bpf.Open(spec(0), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Map{m: m}, nil
}

// OpenOrCreate opens the pinned map or creates and pins an empty one with room
// for maxEntries prefixes; 0 means DefaultEntries. A pinned map with other room is
// replaced by one that has the same entries.
func OpenOrCreate(root bpf.Root, maxEntries uint32) (*Map, error) {
	if maxEntries == 0 {
		maxEntries = DefaultEntries
	}
	m, former, err := bpf.OpenResized(spec(maxEntries), root.Map(Name), copyAll)
	if err == nil && former != nil { // programs that are not loaded again yet keep it; nobody writes to it
		err = bpf.Drop(former, root.Map(Name))
	}
	if err != nil {
		return nil, err
	}
	return &Map{m: m, owned: true}, nil
}

// Map is the kernel's map, for the loader.
func (c *Map) Map() *ebpf.Map { return c.m }

// Close closes the descriptor; the pin keeps the map.
func (c *Map) Close() error { return c.m.Close() }

// Room is the number of prefixes that the map can hold.
func (c *Map) Room() int { return int(c.m.MaxEntries()) }

// Upsert writes all entries, narrow prefixes before those around them.
func (c *Map) Upsert(entries map[netip.Prefix]Entry) error {
	prefixes := slices.SortedFunc(maps.Keys(entries), func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	values := make([]Entry, len(prefixes))
	for i, p := range prefixes {
		values[i] = entries[p]
	}
	return c.Write(prefixes, values)
}

// Write writes entries in this order, in batches. On failure a part, counted from
// the front, may be written; repeat the call. ErrFull says that there is no room.
func (c *Map) Write(prefixes []netip.Prefix, values []Entry) error {
	keys := make([]key, len(prefixes))
	for i, p := range prefixes {
		k, err := makeKey(p)
		if err != nil {
			return err
		}
		keys[i] = k
	}
	err := c.lock.Do(func() error { return bpf.Update(c.m, keys, values) })
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("write %d prefixes into %d: %w", len(keys), c.m.MaxEntries(), ErrFull)
	}
	return err
}

// Delete removes prefixes in this order, in batches; those that are not there are passed over.
func (c *Map) Delete(prefixes ...netip.Prefix) error {
	keys := make([]key, 0, len(prefixes))
	for _, p := range prefixes {
		k, err := makeKey(p)
		if err != nil {
			return err
		}
		keys = append(keys, k)
	}
	return c.lock.Do(func() error { return bpf.Delete(c.m, keys) })
}

// Lookup finds the entry that the programs find for addr: the longest prefix
// that contains it.
func (c *Map) Lookup(addr netip.Addr) (e Entry, found bool, err error) {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() {
		return Entry{}, false, errors.New("address is not set; give an IPv4 or IPv6 address")
	}
	k, err := makeKey(netip.PrefixFrom(addr, addr.BitLen()))
	if err != nil {
		return Entry{}, false, err
	}
	err = c.m.Lookup(&k, &e)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, fmt.Errorf("look %s up in %s: %w", addr, Name, err)
	}
	return e, true, nil
}

// Dump reads all entries. No write is at work meanwhile, so it is a snapshot. A key
// that is no prefix is left out and, in a map from OpenOrCreate, deleted: only
// somebody else can have written it, and it may stand for every address.
func (c *Map) Dump() (map[netip.Prefix]Entry, error) {
	all := map[netip.Prefix]Entry{}
	err := c.lock.Do(func() error {
		var strange []key
		err := bpf.Each(c.m, func(k key, e Entry) {
			if p := k.prefix(); p.IsValid() {
				all[p] = e
			} else {
				strange = append(strange, k)
			}
		})
		if err != nil || !c.owned {
			return err
		}
		return bpf.Delete(c.m, strange)
	})
	return all, err
}

// MemoryBytes estimates the kernel memory of the map: 122 bytes a prefix.
func (c *Map) MemoryBytes() (uint64, error) {
	all, err := c.Dump()
	return entryBytes * uint64(len(all)), err
}

func makeKey(p netip.Prefix) (key, error) {
	if !p.IsValid() || p.Addr().Is4In6() {
		return key{}, fmt.Errorf("%q is no prefix for the ipcache map; give an IPv4 or IPv6 prefix", p)
	}
	p = p.Masked()
	k := key{PrefixLen: fixedBits + uint32(p.Bits()), Family: familyV6, Address: p.Addr().As16()}
	if p.Addr().Is4() {
		a := p.Addr().As4()
		k.Family, k.Address = familyV4, [16]byte{a[0], a[1], a[2], a[3]}
	}
	return k, nil
}

// prefix is not valid if makeKey makes no such key. For the kernel, keys that differ
// only behind their prefix are one.
func (k key) prefix() netip.Prefix {
	addr := netip.AddrFrom16(k.Address)
	switch {
	case k.Pad != [3]byte{} || k.Family != familyV4 && k.Family != familyV6:
		return netip.Prefix{}
	case k.Family == familyV4:
		addr = netip.AddrFrom4([4]byte(k.Address[:4]))
	}
	p := netip.PrefixFrom(addr, int(k.PrefixLen)-fixedBits).Masked()
	if p.Addr().Is4In6() {
		return netip.Prefix{}
	}
	return p
}

// Spec is the layout of the map, of any room.
func Spec() *ebpf.MapSpec { return spec(0) }
