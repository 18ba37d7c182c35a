package eventsmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// Name is the map's name and the last part of its pin path.
	Name = "weir_events"
	// DefaultBytes is the size of the ring unless another is given.
	DefaultBytes = 8 << 20

	period = 20 * time.Millisecond // how often an idle ring is looked at
)

// Map is weir_events.
type Map struct {
	m *ebpf.Map
}

func spec(size uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: Name, Type: ebpf.RingBuf, MaxEntries: size}
}

// OpenOrCreate opens the pinned ring or creates and pins one of size bytes, a
// power of two and a multiple of the page size; 0 means DefaultBytes.
func OpenOrCreate(root bpf.Root, size uint32) (*Map, error) {
	if size == 0 {
		size = DefaultBytes
	}
	m, err := bpf.OpenOrCreate(spec(size), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Map{m}, nil
}

// Map is the kernel's map, for the loader.
func (e *Map) Map() *ebpf.Map { return e.m }

// Close closes the descriptor; the pin keeps the ring.
func (e *Map) Close() error { return e.m.Close() }

// MemoryBytes is the kernel memory of the ring, allocated at creation.
func (e *Map) MemoryBytes() uint64 { return uint64(e.m.MaxEntries()) }

// Run calls fn with every record, oldest first, until ctx ends, and returns
// nil then. The bytes are valid during the call only. A record is seen at most
// 20 ms after it was written. fn must be quick: while it runs the ring fills.
func (e *Map) Run(ctx context.Context, fn func(record []byte)) error {
	r, err := ringbuf.NewReader(e.m)
	if err != nil {
		return fmt.Errorf("open a reader of %s: %w", Name, err)
	}
	defer r.Close()
	var rec ringbuf.Record
	r.SetDeadline(time.Now().Add(period))
	for {
		err := r.ReadInto(&rec)
		switch {
		case err == nil:
			fn(rec.RawSample)
			if ctx.Err() != nil {
				return nil
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Everything that was in the ring has been read.
			if ctx.Err() != nil {
				return nil
			}
			r.SetDeadline(time.Now().Add(period))
		default:
			return fmt.Errorf("read %s: %w", Name, err)
		}
	}
}
