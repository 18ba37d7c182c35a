package ctmap

import (
	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// FragmentsName is the name of the map of fragments and the last part of its pin path.
	FragmentsName = "weir_frag"
	// FragmentsEntries is the room of that map: datagrams under way at once.
	FragmentsEntries = 8192
)

// Fragments is weir_frag: what a datagram's first fragment said of its ports,
// for the fragments after it. Only the programs read and write it.
type Fragments struct {
	m *ebpf.Map
}

// OpenOrCreateFragments opens the pinned map or creates and pins an empty one.
func OpenOrCreateFragments(root bpf.Root) (*Fragments, error) {
	m, err := bpf.OpenOrCreate(fragmentsSpec(), root.Map(FragmentsName))
	if err != nil {
		return nil, err
	}
	return &Fragments{m}, nil
}

// Map is the kernel's map, for the loader.
func (f *Fragments) Map() *ebpf.Map { return f.m }

// Close closes the descriptor; the pin keeps the map.
func (f *Fragments) Close() error { return f.m.Close() }

// MemoryBytes is the kernel memory of the map, allocated at creation.
func (f *Fragments) MemoryBytes() uint64 { return lruBytes(f.m) }

func fragmentsSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: FragmentsName, Type: ebpf.LRUHash, KeySize: 40, ValueSize: 8, MaxEntries: FragmentsEntries,
	}
}

// FragmentsSpec is the layout of the map.
func FragmentsSpec() *ebpf.MapSpec { return fragmentsSpec() }
