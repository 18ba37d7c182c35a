package ctmap

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// Name4 and Name6 are the maps' names and the last parts of their pin paths.
	Name4 = "weir_ct4"
	Name6 = "weir_ct6"
	// DefaultEntries is the room of a map unless another is given.
	DefaultEntries = 65536

	entrySize = 40 // sizeof(struct ct_entry)
)

// Family chooses one of the two maps.
type Family uint8

// The families, numbered as in bpf/lib/types.h.
const (
	IPv4 Family = 1
	IPv6 Family = 2
)

// Map is weir_ct4 or weir_ct6. It is safe for concurrent use.
type Map struct {
	m      *ebpf.Map
	family Family
	lock   bpf.UpdateLock // writers of this process; the programs do not take it
	path   string
	table  *ebpf.Map // weir_former4 or weir_former6; nil of one from Open

	takeOver sync.Mutex // guards former, and keeps purges and the take-over apart
	former   *ebpf.Map  // of another size; nil: no program knows another map than m
}

func spec(f Family, maxEntries uint32) *ebpf.MapSpec {
	s := &ebpf.MapSpec{Name: Name4, Type: ebpf.LRUHash, KeySize: 16, ValueSize: entrySize, MaxEntries: maxEntries}
	if f == IPv6 {
		s.Name, s.KeySize = Name6, 40
	}
	return s
}

// Open opens the family's pinned map, whatever its room; the error wraps
// os.ErrNotExist if there is none.
func Open(root bpf.Root, f Family) (*Map, error) {
	s := spec(f, 0)
	m, err := bpf.Open(s, root.Map(s.Name))
	if err != nil {
		return nil, err
	}
	return &Map{m: m, family: f}, nil
}

// OpenOrCreate opens the family's pinned map or creates and pins an empty one
// with room for maxEntries flows; 0 means DefaultEntries. If a map with other room
// is pinned, both are in use until TakeOver.
func OpenOrCreate(root bpf.Root, f Family, maxEntries uint32) (*Map, error) {
	if maxEntries == 0 {
		maxEntries = DefaultEntries
	}
	s := spec(f, maxEntries)
	c := &Map{family: f, path: root.Map(s.Name)}
	var err error
	if c.m, c.former, err = bpf.OpenResized(s, c.path, func(former, m *ebpf.Map) error { return fits(f, former, m) }); err != nil {
		return nil, err
	}
	if err := c.openFormer(root); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Map is the kernel's map, for the loader.
func (c *Map) Map() *ebpf.Map { return c.m }

// Close closes the descriptors; the pins keep the maps.
func (c *Map) Close() error { return errors.Join(c.m.Close(), c.table.Close(), c.former.Close()) }

// Each calls fn with every flow until it returns false. Flows that come or go
// meanwhile may be missing or come twice.
func (c *Map) Each(fn func(Flow) bool) error {
	if c.family == IPv4 {
		return each[key4](c.m, fn)
	}
	return each[key6](c.m, fn)
}

// Dump reads all flows, expired ones too, in no order.
func (c *Map) Dump() ([]Flow, error) {
	var all []Flow
	err := c.Each(func(f Flow) bool { all = append(all, f); return true })
	return all, err
}

// GC deletes flows that have expired at now, in seconds since boot, and calls
// gone with each of them. It returns the numbers of deleted and of remaining
// flows; they are right also with an error.
func (c *Map) GC(now uint32, gone func(Flow)) (deleted, left int, err error) {
	return c.sweep(c.m, func(f Flow) bool { return f.Expires <= now }, gone)
}

// Purge deletes the flows of an address, whichever end it is.
func (c *Map) Purge(addr netip.Addr) (deleted int, err error) {
	addr = addr.Unmap().WithZone("")
	if addr.Is4() != (c.family == IPv4) {
		return 0, nil
	}
	c.takeOver.Lock()
	defer c.takeOver.Unlock()
	of := func(f Flow) bool { return f.Initiator.Addr() == addr || f.Responder.Addr() == addr }
	if c.former != nil { // first, as programs fetch from it what they miss
		_, _, err = c.sweep(c.former, of, func(Flow) {})
	}
	if err == nil {
		deleted, _, err = c.sweep(c.m, of, func(Flow) {})
	}
	if err != nil {
		err = fmt.Errorf("forget the connections of %s: %w", addr, err)
	}
	return deleted, err
}

func (c *Map) sweep(m *ebpf.Map, drop func(Flow) bool, gone func(Flow)) (deleted, left int, err error) {
	if c.family == IPv4 {
		return sweep[key4](m, &c.lock, drop, gone)
	}
	return sweep[key6](m, &c.lock, drop, gone)
}

// MemoryBytes is the kernel memory of the map, allocated at creation.
func (c *Map) MemoryBytes() uint64 { return lruBytes(c.m) }

// lruBytes counts an element's header and bucket (64 bytes), key and value.
func lruBytes(m *ebpf.Map) uint64 {
	align := func(n uint32) uint64 { return uint64(n+7) / 8 * 8 }
	return uint64(m.MaxEntries()) * (64 + align(m.KeySize()) + align(m.ValueSize()))
}

func each[K rawKey](m *ebpf.Map, fn func(Flow) bool) error {
	return bpf.Chunks(m, func(keys []K, entries []entry) bool {
		for i := range keys {
			if !fn(decode(keys[i], entries[i])) {
				return false
			}
		}
		return true
	})
}

// sweep deletes after each chunk that it reads, so that little time passes
// between the judgement and the deletion. A hash is read bucket by bucket, so
// deletions do not disturb it.
func sweep[K rawKey](m *ebpf.Map, lock *bpf.UpdateLock, drop func(Flow) bool, gone func(Flow)) (deleted, left int, err error) {
	var victims []K
	var flows []Flow // of the victims
	var failed error
	err = bpf.Chunks(m, func(keys []K, entries []entry) bool {
		victims, flows = victims[:0], flows[:0]
		for i := range keys {
			if f := decode(keys[i], entries[i]); drop(f) {
				victims, flows = append(victims, keys[i]), append(flows, f)
			}
		}
		left += len(keys) - len(victims)
		failed = lock.Do(func() error { return bpf.Delete(m, victims) })
		if failed == nil {
			deleted += len(victims)
			for _, f := range flows {
				gone(f)
			}
		}
		return failed == nil
	})
	if failed != nil {
		err = failed
	}
	return deleted, left, err
}
