package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// dumpChunk is the number of entries that one read asks the kernel for. A hash
// hands out whole buckets, so the chunk doubles where a bucket does not fit.
const dumpChunk = 4096

// Update writes values[i] at keys[i] for all i, by one system call where the
// kernel can and one by one where it cannot. On failure an unknown part,
// counted from the front, has been written.
func Update[K, V any](m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := m.BatchUpdate(keys, values, nil)
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = nil
		for i := range keys {
			if err = m.Put(&keys[i], &values[i]); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("write %d entries of %s: %w", len(keys), m, err)
	}
	return nil
}

// Delete removes keys, by batches where the kernel can. Keys that are not in
// the map are passed over. On failure an unknown part has been removed.
func Delete[K any](m *ebpf.Map, keys []K) error {
	for left := keys; len(left) > 0; {
		n, err := m.BatchDelete(left, nil)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ebpf.ErrNotSupported):
			return deleteEach(m, left)
		case errors.Is(err, ebpf.ErrKeyNotExist) && n < len(left):
			left = left[n+1:] // the kernel stopped at the missing key
		default:
			return fmt.Errorf("delete %d entries of %s: %w", len(keys), m, err)
		}
	}
	return nil
}

func deleteEach[K any](m *ebpf.Map, keys []K) error {
	for i := range keys {
		if err := m.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete an entry of %s: %w", m, err)
		}
	}
	return nil
}

// Chunks reads the whole map and calls fn with the entries of each read; fn
// may delete them from the map if it is a hash, and returns false to stop. The slices are valid during the
// call only. Entries that are written meanwhile may be missing or come twice.
func Chunks[K, V any](m *ebpf.Map, fn func([]K, []V) bool) error {
	size := min(dumpChunk, int(m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for seen := 0; seen <= 2*int(m.MaxEntries()); {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		switch {
		case err == nil, errors.Is(err, ebpf.ErrKeyNotExist):
			if n > 0 && !fn(keys[:n], values[:n]) || err != nil {
				return nil
			}
			seen += n
		case errors.Is(err, unix.ENOSPC) && size < 2*int(m.MaxEntries()):
			size *= 2
			keys, values = make([]K, size), make([]V, size)
		case errors.Is(err, ebpf.ErrNotSupported):
			return chunksOfOne(m, fn)
		default:
			return fmt.Errorf("read %s: %w", m, err)
		}
	}
	return fmt.Errorf("read %s: it changes faster than it can be read; try again", m)
}

func chunksOfOne[K, V any](m *ebpf.Map, fn func([]K, []V) bool) error {
	var k [1]K
	var v [1]V
	it := m.Iterate()
	for it.Next(&k[0], &v[0]) {
		if !fn(k[:], v[:]) {
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read %s: %w", m, err)
	}
	return nil
}

// Each reads the whole map as Chunks does and calls fn with every entry.
func Each[K, V any](m *ebpf.Map, fn func(K, V)) error {
	return Chunks(m, func(keys []K, values []V) bool {
		for i := range keys {
			fn(keys[i], values[i])
		}
		return true
	})
}
