package ctmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// Former4 and Former6 are the arrays that show the programs a former map.
const (
	Former4 = "weir_former4"
	Former6 = "weir_former6"
)

func formerSpec(f Family) *ebpf.MapSpec {
	s := &ebpf.MapSpec{Name: Former4, Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec(f, DefaultEntries)}
	if f == IPv6 {
		s.Name = Former6
	}
	return s
}

// fits refuses a smaller map that the live flows would crowd: the kernel forgets
// flows before all room is taken, as each CPU keeps some of it free.
func fits(f Family, former, m *ebpf.Map) error {
	if m.MaxEntries() > former.MaxEntries() {
		return nil
	}
	now, live := uint32(bpf.FlowTime().Seconds()), uint32(0)
	count := func(f Flow) bool {
		if f.Expires > now {
			live++
		}
		return true
	}
	if err := (&Map{m: former, family: f}).Each(count); err != nil {
		return err
	}
	if least := live + live/3; m.MaxEntries() < least {
		return fmt.Errorf("it holds %d live flows; give conntrack-entries at least %d", live, least)
	}
	return nil
}

// openFormer shows the former map to the programs, or none.
func (c *Map) openFormer(root bpf.Root) error {
	s := formerSpec(c.family)
	var err error
	if c.table, err = bpf.OpenOrCreate(s, root.Map(s.Name)); err != nil {
		return err
	}
	if c.former == nil {
		return c.hideFormer()
	}
	if err := c.table.Put(uint32(0), c.former); err != nil {
		return fmt.Errorf("put the former map into %s: %w", s.Name, err)
	}
	return nil
}

// hideFormer returns after a grace period, if there is a former map.
func (c *Map) hideFormer() error {
	var id ebpf.MapID
	err := c.table.Lookup(uint32(0), &id)
	if err == nil {
		err = c.table.Delete(uint32(0))
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("take the former map out of %s: %w", c.table, err)
	}
	return nil
}

// FormerMap is the array that shows the programs a former map, for the loader.
func (c *Map) FormerMap() *ebpf.Map { return c.table }

// Former is the map of another size that programs of an earlier agent still use;
// nil if there is none.
func (c *Map) Former() *ebpf.Map {
	c.takeOver.Lock()
	defer c.takeOver.Unlock()
	return c.former
}

// FormerBytes is the kernel memory of the former map.
func (c *Map) FormerBytes() uint64 {
	if former := c.Former(); former != nil {
		return lruBytes(former)
	}
	return 0
}

// TakeOver brings over the flows that no packet has brought over yet, and gives the
// former map up. No program that knows only that one may run any more.
func (c *Map) TakeOver() error {
	c.takeOver.Lock()
	defer c.takeOver.Unlock()
	if c.former == nil {
		return nil
	}
	var err error
	if c.family == IPv4 {
		err = bringOver[key4](c.former, c.m)
	} else {
		err = bringOver[key6](c.former, c.m)
	}
	if err != nil {
		return fmt.Errorf("bring the flows of the former map over: %w", err)
	}
	// Without the pin the next agent does not bring anything over again.
	former := c.former
	c.former = nil
	return errors.Join(bpf.Drop(former, c.path), c.hideFormer())
}

// bringOver does for each live flow what the programs do at its next packet: an
// entry of the other map is the better one, unless it has expired.
func bringOver[K rawKey](former, m *ebpf.Map) error {
	now := uint32(bpf.FlowTime().Seconds())
	var failed error
	err := bpf.Chunks(former, func(keys []K, entries []entry) bool {
		for i := range keys {
			if entries[i].Expires <= now {
				continue
			}
			failed = m.Update(&keys[i], &entries[i], ebpf.UpdateNoExist)
			if errors.Is(failed, ebpf.ErrKeyExist) {
				var have entry
				failed = m.Lookup(&keys[i], &have)
				sweptJustNow := errors.Is(failed, ebpf.ErrKeyNotExist)
				if sweptJustNow || failed == nil && have.Expires <= now {
					failed = m.Update(&keys[i], &entries[i], ebpf.UpdateAny)
				}
			}
			if failed != nil {
				return false
			}
		}
		return true
	})
	return errors.Join(failed, err)
}
