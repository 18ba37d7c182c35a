package eventsmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
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
	turn   = 1 << 16               // records that are read before another ring is looked at
)

// Map is weir_events.
type Map struct {
	m    *ebpf.Map
	path string

	former atomic.Pointer[ebpf.Map] // ring of another size; nil: no program writes to another than m
	ended  atomic.Bool              // nor does any write to former
}

func spec(size uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: Name, Type: ebpf.RingBuf, MaxEntries: size}
}

// OpenOrCreate opens the pinned ring or creates and pins one of size bytes, a
// power of two and a multiple of the page size; 0 means DefaultBytes. If a ring of
// another size is pinned, both are in use until TakeOver.
func OpenOrCreate(root bpf.Root, size uint32) (*Map, error) {
	if size == 0 {
		size = DefaultBytes
	}
	e := &Map{path: root.Map(Name)}
	m, former, err := bpf.OpenResized(spec(size), e.path, func(_, _ *ebpf.Map) error { return nil })
	if err != nil {
		return nil, err
	}
	e.m = m
	e.former.Store(former)
	return e, nil
}

// Map is the kernel's map, for the loader.
func (e *Map) Map() *ebpf.Map { return e.m }

// Close closes the descriptors; the pins keep the rings. Run has returned before.
func (e *Map) Close() error { return errors.Join(e.m.Close(), e.former.Load().Close()) }

// Former is the ring of another size that programs of an earlier agent may still
// write to; nil if there is none.
func (e *Map) Former() *ebpf.Map {
	if e.ended.Load() {
		return nil
	}
	return e.former.Load()
}

// TakeOver lets Run give the former ring up once it has read it to the end. No
// program that writes to it may run any more.
func (e *Map) TakeOver() error {
	e.ended.Store(true)
	return nil
}

// MemoryBytes is the kernel memory of the ring, allocated at creation.
func (e *Map) MemoryBytes() uint64 { return uint64(e.m.MaxEntries()) }

// Run calls fn with every record, oldest first, until ctx ends, and returns
// nil then. The bytes are valid during the call only. A record is seen at most
// 20 ms after it was written. fn must be quick: while it runs the ring fills.
// Records of a former ring come first, as far as they are there.
func (e *Map) Run(ctx context.Context, fn func(record []byte)) error {
	r, err := ringbuf.NewReader(e.m)
	if err != nil {
		return fmt.Errorf("open a reader of %s: %w", Name, err)
	}
	defer r.Close()
	var old *ringbuf.Reader
	if former := e.former.Load(); former != nil {
		if old, err = ringbuf.NewReader(former); err != nil {
			return fmt.Errorf("open a reader of the former %s: %w", Name, err)
		}
		defer old.Close()
	}
	for ctx.Err() == nil {
		if former := e.former.Load(); former != nil {
			ended := e.ended.Load() // before the last look
			all, err := read(ctx, old, 0, fn)
			if err != nil {
				return err
			}
			if all && ended {
				e.former.Store(nil)
				if err := errors.Join(old.Close(), bpf.Drop(former, e.path)); err != nil {
					return err
				}
			}
		}
		if _, err := read(ctx, r, period, fn); err != nil {
			return err
		}
	}
	return nil
}

// read hands out what a ring holds once that much time has passed, and what comes
// meanwhile, but no more than is fair to another ring.
func read(ctx context.Context, r *ringbuf.Reader, wait time.Duration, fn func([]byte)) (all bool, err error) {
	var rec ringbuf.Record
	r.SetDeadline(time.Now().Add(wait))
	for range turn {
		err := r.ReadInto(&rec)
		switch {
		case err == nil:
			fn(rec.RawSample)
			if ctx.Err() != nil {
				return false, nil
			}
		case errors.Is(err, os.ErrDeadlineExceeded):
			return true, nil // everything that was in the ring has been read
		default:
			return false, fmt.Errorf("read %s: %w", Name, err)
		}
	}
	return false, nil
}

// Spec is the layout of the map, of any room.
func Spec() *ebpf.MapSpec { return spec(0) }
