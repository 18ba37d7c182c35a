package metricsmap

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// Name is the map's name and the last part of its pin path.
	Name = "weir_metrics"
	// ReasonForwarded is the reason under which passed packets are counted.
	ReasonForwarded = 0
	// ReasonEventLost counts events that found no room in the ring (DROP_EVENT_LOST).
	ReasonEventLost = 255

	maxEntries = 512 // reason << 1 | direction
)

// entry is struct metrics_entry.
type entry struct {
	Packets, Bytes uint64
}

// Count is what one reason and direction came to, over all CPUs since the map
// was made.
type Count struct {
	Reason    uint8
	Direction uint8 // 0 ingress, 1 egress
	Packets   uint64
	Bytes     uint64
}

// Map is weir_metrics. It is safe for concurrent use.
type Map struct {
	m *ebpf.Map
}

func spec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: Name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: maxEntries}
}

// Open opens the pinned map; the error wraps os.ErrNotExist if there is none.
func Open(root bpf.Root) (*Map, error) {
	m, err := bpf.Open(spec(), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Map{m}, nil
}

// OpenOrCreate opens the pinned map or creates and pins one that counts from 0.
func OpenOrCreate(root bpf.Root) (*Map, error) {
	m, err := bpf.OpenOrCreate(spec(), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Map{m}, nil
}

// Map is the kernel's map, for the loader.
func (c *Map) Map() *ebpf.Map { return c.m }

// Close closes the descriptor; the pin keeps the map.
func (c *Map) Close() error { return c.m.Close() }

// Dump reads all counters that are not 0, ordered by reason and direction.
func (c *Map) Dump() ([]Count, error) {
	var all []Count
	for i := range uint32(maxEntries) {
		n, err := c.read(i)
		if err != nil {
			return nil, err
		}
		if n.Packets != 0 || n.Bytes != 0 {
			all = append(all, n)
		}
	}
	return all, nil
}

// LostEvents is the number of events that the programs could not put into the ring.
func (c *Map) LostEvents() (uint64, error) {
	sum := uint64(0)
	for direction := range uint32(2) {
		n, err := c.read(ReasonEventLost<<1 | direction)
		if err != nil {
			return 0, err
		}
		sum += n.Packets
	}
	return sum, nil
}

// MemoryBytes is the kernel memory of the counters, allocated at creation.
func (c *Map) MemoryBytes() (uint64, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return 0, fmt.Errorf("count the possible CPUs: %w", err)
	}
	return uint64(cpus) * maxEntries * 16, nil
}

func (c *Map) read(index uint32) (Count, error) {
	n := Count{Reason: uint8(index >> 1), Direction: uint8(index & 1)}
	var cpus []entry
	if err := c.m.Lookup(index, &cpus); err != nil {
		return n, fmt.Errorf("read the counter of reason %d, direction %d: %w", n.Reason, n.Direction, err)
	}
	for _, e := range cpus {
		n.Packets += e.Packets
		n.Bytes += e.Bytes
	}
	return n, nil
}

// Spec is the layout of the map.
func Spec() *ebpf.MapSpec { return spec() }
