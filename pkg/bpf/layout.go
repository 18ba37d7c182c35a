package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
)

// asideSuffix is what the pin of a map of an unknown layout has more once another map
// has its place.
const asideSuffix = "_aside"

// Layout is a former layout of a map, known by its sizes.
type Layout struct {
	KeySize, ValueSize uint32
	// Convert makes an entry of now of one of then; a nil key leaves it out.
	Convert func(key, value []byte) (newKey, newValue []byte)
}

// Replaced says what became of a pinned map of another layout.
type Replaced struct {
	Path        string   // the pin, which holds a map of the layout of now
	Differences []string // "value size is 8, want 16"
	Entries     int      // that were converted
	Aside       string   // the pin of the map if its layout is not known; empty if it is
}

// ConvertLayout puts a map of the layout of spec in the place of a pinned one of
// another layout, with its entries if the layout is one of those given, else empty.
// Programs go on with the map that they know. Room is not looked at: nil comes back
// where there is nothing to do.
func ConvertLayout(spec *ebpf.MapSpec, path string, layouts []Layout) (*Replaced, error) {
	return ReplaceLayout(spec, path, func(former *ebpf.Map) []string { return layoutDifferences(spec, former) },
		func(former, m *ebpf.Map) (known bool, entries int, err error) {
			l := layoutOf(former, layouts)
			if l == nil {
				return false, 0, nil
			}
			entries, err = l.Fill(former, m)
			return true, entries, err
		})
}

// Differs reports whether a map of another layout than that of spec is pinned; room
// is not looked at.
func Differs(spec *ebpf.MapSpec, path string) (bool, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open the map pinned at %s: %w", path, err)
	}
	defer m.Close()
	spec = spec.Copy()
	spec.MaxEntries = m.MaxEntries()
	return len(layoutDifferences(spec, m)) > 0, nil
}

// ReplaceLayout is ConvertLayout for a map with its own way to compare and to fill.
func ReplaceLayout(spec *ebpf.MapSpec, path string, differs func(former *ebpf.Map) []string, fill func(former, m *ebpf.Map) (known bool, entries int, err error)) (*Replaced, error) {
	spec = spec.Copy()
	room := spec.MaxEntries
	spec.MaxEntries = 0
	if old, err := ebpf.LoadPinnedMap(path+formerSuffix, nil); err == nil { // of a change of size that did not end
		other := len(layoutDifferences(spec, old)) > 0
		old.Close()
		if other {
			if err := removePin(path + formerSuffix); err != nil {
				return nil, err
			}
		}
	}
	former, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the map pinned at %s: %w", path, err)
	}
	defer former.Close()
	spec.MaxEntries = former.MaxEntries()
	diff := differs(former)
	if len(diff) == 0 {
		return nil, nil
	}
	if former.Type() != spec.Type { // nothing of it can be used, not even the room
		aside, err := linkAside(path)
		if err == nil {
			err = removePin(path)
		}
		return &Replaced{Path: path, Differences: diff, Aside: aside}, err
	}
	if spec.MaxEntries = room; room == 0 {
		spec.MaxEntries = former.MaxEntries()
	}
	m, err := Create(spec)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	known, entries, err := fill(former, m)
	if err != nil {
		return nil, fmt.Errorf("convert the map pinned at %s (%s): %w", path, strings.Join(diff, ", "), err)
	}
	r := &Replaced{Path: path, Differences: diff, Entries: entries}
	if !known {
		if r.Aside, err = linkAside(path); err != nil {
			return nil, err
		}
	}
	if err = errors.Join(removePin(path+newSuffix), m.Pin(path+newSuffix)); err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err != nil {
		return nil, fmt.Errorf("put a map of another layout at %s: %w", path, err)
	}
	return r, nil
}

// linkAside keeps a map under another pin.
func linkAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s%s%d", path, asideSuffix, n)
		err := os.Link(path, aside)
		if err == nil {
			return aside, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("set the map pinned at %s aside: %w", path, err)
		}
	}
}

func layoutOf(m *ebpf.Map, layouts []Layout) *Layout {
	for i, l := range layouts {
		if l.KeySize == m.KeySize() && l.ValueSize == m.ValueSize() {
			return &layouts[i]
		}
	}
	return nil
}

// Fill writes the entries of a map of the layout into one of now, and counts them.
func (l *Layout) Fill(former, m *ebpf.Map) (entries int, err error) {
	perCPU := former.Type() == ebpf.PerCPUArray || former.Type() == ebpf.PerCPUHash || former.Type() == ebpf.LRUCPUHash
	key := make([]byte, former.KeySize())
	value, values := make([]byte, former.ValueSize()), [][]byte(nil)
	it := former.Iterate()
	next := func() bool {
		if perCPU {
			return it.Next(&key, &values)
		}
		return it.Next(&key, &value)
	}
	for next() {
		var k []byte
		var v any
		if perCPU {
			all := make([][]byte, len(values))
			for i, one := range values {
				k, all[i] = l.Convert(key, one)
			}
			v = all
		} else {
			k, v = l.Convert(key, value)
		}
		if k == nil {
			continue
		}
		if err := m.Put(k, v); err != nil {
			return entries, fmt.Errorf("write a converted entry: %w", err)
		}
		entries++
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // aborted: it changed too much meanwhile
		return entries, fmt.Errorf("read entries to convert: %w", err)
	}
	return entries, nil
}
