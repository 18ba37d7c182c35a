package policymap

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// Convert puts an array of the layout of now in the place of a pinned one with another
// number of slots or other maps in them, or of any if always, with the policies that a
// layout is known for. Slots keep their numbers. Programs that know the former array go
// on with it, by the words that they know: both arrays have to be replaced at once.
func Convert(root bpf.Root, slots uint32, layouts []bpf.Layout, always bool) (*bpf.Replaced, error) {
	if slots == 0 {
		slots = DefaultSlots
	}
	want := innerSpec()
	same := bpf.Layout{KeySize: want.KeySize, ValueSize: want.ValueSize, Convert: func(k, v []byte) ([]byte, []byte) { return k, v }}
	layouts = append([]bpf.Layout{same}, layouts...)
	differs := func(former *ebpf.Map) (diff []string) {
		if always {
			diff = append(diff, "the words that name its slots are in another map")
		}
		if former.Type() != ebpf.ArrayOfMaps || former.MaxEntries() != slots {
			diff = append(diff, fmt.Sprintf("it is %v, want %d slots", former, slots))
		}
		if inner := firstInner(former); inner != nil {
			if inner.Type() != want.Type || inner.KeySize() != want.KeySize || inner.ValueSize() != want.ValueSize || inner.MaxEntries() != want.MaxEntries {
				diff = append(diff, fmt.Sprintf("its policies are %v", inner))
			}
			inner.Close()
		}
		return diff
	}
	return bpf.ReplaceLayout(outerSpec(slots), root.Map(Name), differs, func(former, m *ebpf.Map) (known bool, entries int, err error) {
		return convertAll(&kernelArray{m: former}, m, layouts)
	})
}

// firstInner opens a map that some slot holds; nil if there is none.
func firstInner(outer *ebpf.Map) *ebpf.Map {
	if outer.Type() != ebpf.ArrayOfMaps {
		return nil
	}
	var slot uint32
	var id ebpf.MapID
	for it := outer.Iterate(); it.Next(&slot, &id); {
		if id == 0 {
			continue
		}
		if m, err := ebpf.NewMapFromID(id); err == nil {
			return m
		}
	}
	return nil
}

func convertAll(former *kernelArray, m *ebpf.Map, layouts []bpf.Layout) (known bool, entries int, err error) {
	own, _, err := former.filled()
	if err != nil {
		return false, 0, err
	}
	for _, slot := range own {
		if slot >= m.MaxEntries()-1 {
			return false, 0, nil
		}
		known, n, err := convertSlot(former, slot, m, layouts)
		if err != nil || !known {
			return false, 0, err
		}
		entries += n
	}
	return true, entries, nil
}

func convertSlot(former *kernelArray, slot uint32, m *ebpf.Map, layouts []bpf.Layout) (known bool, entries int, err error) {
	id, err := former.id(slot)
	if err != nil {
		return false, 0, err
	}
	inner, err := ebpf.NewMapFromID(id)
	if err != nil {
		return false, 0, fmt.Errorf("open the map of policy slot %d: %w", slot, err)
	}
	defer inner.Close()
	for i := range layouts {
		if layouts[i].KeySize != inner.KeySize() || layouts[i].ValueSize != inner.ValueSize() || inner.Type() != ebpf.LPMTrie {
			continue
		}
		fresh, err := bpf.Create(innerSpec())
		if err != nil {
			return false, 0, err
		}
		defer fresh.Close()
		if entries, err = layouts[i].Fill(inner, fresh); err == nil {
			err = m.Put(slot, uint32(fresh.FD()))
		}
		return true, entries, err
	}
	return false, 0, nil
}
