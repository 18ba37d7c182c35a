package policymap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// contents is a slot's map while it is written or read.
type contents interface {
	update([]key, []entry) error // in the given order
	delete([]key) error          // in the given order; keys that are not there are passed over
	each(func(key, entry)) error
	close() error
}

// array is the outer map; tests put one that fails in its place.
type array interface {
	// filled lists the slots that hold a map of their own, and those that share one
	// which is not the one of empty: a former agent of another version left it.
	filled() (own, strays []uint32, err error)
	// open opens a slot's map.
	open(slot uint32) (contents, error)
	// refresh puts a new, empty map into each slot by one batch and returns
	// after a grace period. Also with an error, done are the slots that have one.
	refresh(slots []uint32) (done []uint32, err error)
	// empty takes the maps out of slots by one batch and returns after a grace
	// period: afterwards they share one empty map, which is never written to.
	empty(slots []uint32) error
	close() error
}

func innerSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "weir_policy_in", Type: ebpf.LPMTrie, KeySize: 12, ValueSize: 24, MaxEntries: MaxEntries, Flags: noPrealloc,
	}
}

func outerSpec(slots uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: Name, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: slots, InnerMap: innerSpec(),
	}
}

// kernelArray is weir_policy itself.
type kernelArray struct {
	m      *ebpf.Map
	shared *ebpf.Map // that the last slot and all that gave their map back hold; nil of a Reader
}

func (a *kernelArray) close() error {
	if a.shared != nil {
		a.shared.Close()
	}
	return a.m.Close()
}

// openShared takes over the map that an earlier agent left in the last slot for all
// to share, or makes one and puts it there. One that is not empty is not shared.
func (a *kernelArray) openShared() error {
	last := a.m.MaxEntries() - 1
	if left, err := a.open(last); err == nil {
		empty := true
		if err := left.each(func(key, entry) { empty = false }); err == nil && empty {
			a.shared = left.(kernelContents).m
			return nil
		}
		left.close()
	}
	m, err := bpf.Create(innerSpec())
	if err != nil {
		return fmt.Errorf("make an empty policy map: %w", err)
	}
	a.shared = m
	return a.empty([]uint32{last})
}

// filled knows a shared map by the number of slots that hold it: no policy has two.
func (a *kernelArray) filled() (own, strays []uint32, err error) {
	last := a.m.MaxEntries() - 1
	ids := make([]ebpf.MapID, last+1)
	holders := map[ebpf.MapID]int{}
	for slot := range ids {
		if ids[slot], err = a.id(uint32(slot)); err != nil {
			return nil, nil, err
		}
		holders[ids[slot]]++
	}
	for slot, id := range ids[:last] {
		switch {
		case id == 0 || id == ids[last]:
		case holders[id] > 1:
			strays = append(strays, uint32(slot))
		default:
			own = append(own, uint32(slot))
		}
	}
	return own, strays, nil
}

// id is the kernel's id of a slot's map; 0 if there is none.
func (a *kernelArray) id(slot uint32) (ebpf.MapID, error) {
	var id ebpf.MapID
	err := a.m.Lookup(slot, &id)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read slot %d of %s: %w", slot, Name, err)
	}
	return id, nil
}

func (a *kernelArray) open(slot uint32) (contents, error) {
	id, err := a.id(slot)
	if err != nil {
		return nil, err
	}
	if id == 0 {
		return nil, fmt.Errorf("open policy slot %d: it holds no map", slot)
	}
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open the map of policy slot %d: %w", slot, err)
	}
	want := innerSpec()
	if m.Type() != want.Type || m.KeySize() != want.KeySize || m.ValueSize() != want.ValueSize {
		m.Close()
		return nil, fmt.Errorf("the map of policy slot %d is of another layout: %v; stop the agent and remove the pin of %s", slot, m, Name)
	}
	return kernelContents{m}, nil
}

func (a *kernelArray) refresh(slots []uint32) ([]uint32, error) {
	fresh := make([]*ebpf.Map, 0, len(slots))
	defer func() {
		for _, m := range fresh {
			m.Close() // the slot holds it
		}
	}()
	fds := make([]uint32, 0, len(slots))
	for range slots {
		m, err := bpf.Create(innerSpec())
		if err != nil {
			return nil, fmt.Errorf("make empty policy maps: %w", err)
		}
		fresh = append(fresh, m)
		fds = append(fds, uint32(m.FD()))
	}
	err := bpf.Update(a.m, slots, fds)
	if err == nil {
		return slots, nil
	}
	// Which ones went in is read back: a failed batch does not tell reliably.
	var done []uint32
	for i, slot := range slots {
		info, infoErr := fresh[i].Info()
		if infoErr != nil {
			continue
		}
		want, _ := info.ID()
		if have, idErr := a.id(slot); idErr == nil && have == want {
			done = append(done, slot)
		}
	}
	return done, fmt.Errorf("put %d empty policy maps into slots: %w", len(slots), err)
}

// empty does not delete: the kernel deletes from an array of maps one by one
// and waits for a grace period each time.
func (a *kernelArray) empty(slots []uint32) error {
	fds := make([]uint32, len(slots))
	for i := range fds {
		fds[i] = uint32(a.shared.FD())
	}
	if err := bpf.Update(a.m, slots, fds); err != nil {
		return fmt.Errorf("take the maps out of %d released policy slots: %w", len(slots), err)
	}
	return nil
}

// kernelContents is the LPM trie of a slot.
type kernelContents struct {
	m *ebpf.Map
}

func (c kernelContents) update(k []key, e []entry) error { return bpf.Update(c.m, k, e) }
func (c kernelContents) delete(k []key) error            { return bpf.Delete(c.m, k) }
func (c kernelContents) each(fn func(key, entry)) error  { return bpf.Each(c.m, fn) }
func (c kernelContents) close() error                    { return c.m.Close() }
