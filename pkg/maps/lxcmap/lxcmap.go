package lxcmap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/types"
)

const (
	// Name is the map's name and the last part of its pin path.
	Name = "weir_lxc"
	// MaxEntries is the room of the map: two addresses an endpoint, and to spare.
	MaxEntries = 65536
	noPrealloc = 1 // BPF_F_NO_PREALLOC

	familyV4, familyV6 = 1, 2 // FAMILY_* of bpf/lib/types.h
)

// Info is what the programs need to deliver to an endpoint and to judge it.
type Info struct {
	IfIndex        uint32    // host side of the veth
	Identity       uint32    // who
	PrefixIdentity uint32    // where; 0 if no prefix selector covers the address
	ID             uint16    // endpoint id, index into the configuration array
	MAC            types.MAC // inside the pod
	NodeMAC        types.MAC // host side
}

// key is struct endpoint_key.
type key struct {
	Address [16]byte
	Family  uint8
	Pad     [3]byte
}

// info is struct endpoint_info.
type info struct {
	IfIndex, Identity, PrefixIdentity uint32
	ID                                uint16
	Pad0                              [2]byte
	MAC                               types.MAC
	Pad1                              [2]byte
	NodeMAC                           types.MAC
	Pad2                              [2]byte
}

// Map is weir_lxc. It is safe for concurrent use.
type Map struct {
	m    *ebpf.Map
	lock bpf.UpdateLock
}

func spec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: Name, Type: ebpf.Hash, KeySize: 20, ValueSize: 32, MaxEntries: MaxEntries, Flags: noPrealloc}
}

// Open opens the pinned map; the error wraps os.ErrNotExist if there is none.
func Open(root bpf.Root) (*Map, error) {
	m, err := bpf.Open(spec(), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Map{m: m}, nil
}

// OpenOrCreate opens the pinned map or creates and pins an empty one.
func OpenOrCreate(root bpf.Root) (*Map, error) {
	m, err := bpf.OpenOrCreate(spec(), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Map{m: m}, nil
}

// Map is the kernel's map, for the loader.
func (l *Map) Map() *ebpf.Map { return l.m }

// Close closes the descriptor; the pin keeps the map.
func (l *Map) Close() error { return l.m.Close() }

// Put writes an address. A packet sees either the former or the new entry.
func (l *Map) Put(addr netip.Addr, i Info) error {
	k, err := makeKey(addr)
	if err != nil {
		return err
	}
	v := info{
		IfIndex: i.IfIndex, Identity: i.Identity, PrefixIdentity: i.PrefixIdentity,
		ID: i.ID, MAC: i.MAC, NodeMAC: i.NodeMAC,
	}
	err = l.lock.Do(func() error { return l.m.Put(&k, &v) })
	if err != nil {
		return fmt.Errorf("write endpoint address %s (endpoint %d): %w", addr, i.ID, err)
	}
	return nil
}

// Delete removes an address; one that is not there is no error.
func (l *Map) Delete(addr netip.Addr) error {
	k, err := makeKey(addr)
	if err != nil {
		return err
	}
	err = l.lock.Do(func() error { return l.m.Delete(&k) })
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete endpoint address %s: %w", addr, err)
	}
	return nil
}

// Get reads an address; found is false if it is not there.
func (l *Map) Get(addr netip.Addr) (i Info, found bool, err error) {
	k, err := makeKey(addr)
	if err != nil {
		return Info{}, false, err
	}
	var v info
	err = l.m.Lookup(&k, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Info{}, false, nil
	}
	if err != nil {
		return Info{}, false, fmt.Errorf("read endpoint address %s: %w", addr, err)
	}
	return v.decode(), true, nil
}

// Dump reads all addresses.
func (l *Map) Dump() (map[netip.Addr]Info, error) {
	all := map[netip.Addr]Info{}
	err := bpf.Each(l.m, func(k key, v info) { all[k.addr()] = v.decode() })
	return all, err
}

// MemoryBytes estimates the kernel memory of the map: 16 bytes a bucket at
// creation and 170 an entry, slab rounding included.
func (l *Map) MemoryBytes() (uint64, error) {
	n := uint64(0)
	err := bpf.Each(l.m, func(key, info) { n++ })
	return 16*uint64(l.m.MaxEntries()) + 170*n, err
}

func makeKey(addr netip.Addr) (key, error) {
	addr = addr.Unmap().WithZone("")
	var k key
	switch {
	case addr.Is4():
		a := addr.As4()
		k.Family = familyV4
		copy(k.Address[:], a[:])
	case addr.Is6():
		k.Family, k.Address = familyV6, addr.As16()
	default:
		return k, errors.New("endpoint address is not set; give an IPv4 or IPv6 address")
	}
	return k, nil
}

func (k key) addr() netip.Addr {
	if k.Family == familyV4 {
		return netip.AddrFrom4([4]byte(k.Address[:4]))
	}
	return netip.AddrFrom16(k.Address)
}

func (v info) decode() Info {
	return Info{
		IfIndex: v.IfIndex, Identity: v.Identity, PrefixIdentity: v.PrefixIdentity,
		ID: v.ID, MAC: v.MAC, NodeMAC: v.NodeMAC,
	}
}

// Spec is the layout of the map.
func Spec() *ebpf.MapSpec { return spec() }
