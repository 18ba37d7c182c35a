package policymap

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weirnet/weir/pkg/bpf"
)

// Adopt counts the group as a user of a slot that a former agent filled, and
// leaves its contents as they are. It is called once for each restored
// endpoint, before ReleaseUnadopted.
func (s *Slots) Adopt(number uint32, group string) error {
	return s.lock.Do(func() error {
		if s.closed {
			return errClosed
		}
		u := s.used[number]
		if u == nil {
			if !s.unclaimed[number] {
				return fmt.Errorf("adopt policy slot %d: no former agent left a policy there; acquire another one", number)
			}
			delete(s.unclaimed, number)
			u = &slot{number: number, users: map[string]int{}}
			s.used[number] = u
		}
		u.users[group]++
		return nil
	})
}

// ReleaseUnadopted frees the slots that a former agent filled and no restored
// endpoint adopted. It is called once all endpoints are restored.
func (s *Slots) ReleaseUnadopted() {
	_ = s.lock.Do(func() error {
		s.dirty = append(s.dirty, slices.Sorted(maps.Keys(s.unclaimed))...)
		clear(s.unclaimed)
		s.signal()
		return nil
	})
}

// learn reads the contents of an adopted slot or of one whose delta failed. Locked.
func (s *Slots) learn(u *slot) error {
	var records []record
	err := s.write(u.number, func(c contents) error {
		return c.each(func(k key, e entry) { records = append(records, record{k, e}) })
	})
	if err != nil {
		return fmt.Errorf("read policy slot %d: %w", u.number, err)
	}
	records = sorted(records)
	s.remember(u, records, hashOf(records))
	return nil
}

// Dump reads the lines of a slot from the kernel.
func (s *Slots) Dump(number uint32) (map[Key]Entry, error) {
	var all map[Key]Entry
	err := s.lock.Do(func() (err error) {
		if s.closed {
			return errClosed
		}
		all, err = dump(s.outer, number)
		return err
	})
	return all, err
}

func dump(outer array, number uint32) (map[Key]Entry, error) {
	c, err := outer.open(number)
	if err != nil {
		return nil, err
	}
	all := map[Key]Entry{}
	err = c.each(func(k key, e entry) {
		decoded, entry := record{k, e}.decode()
		all[decoded] = entry
	})
	return all, errors.Join(err, c.close())
}

// Reader reads the policies beside the agent that owns them.
type Reader struct {
	outer *kernelArray
}

// OpenReader opens the pinned array; the error wraps os.ErrNotExist if there is none.
func OpenReader(root bpf.Root) (*Reader, error) {
	m, err := bpf.Open(outerSpec(0), root.Map(Name))
	if err != nil {
		return nil, err
	}
	return &Reader{&kernelArray{m: m}}, nil
}

// Slots lists the slots that hold a map of their own, empty ones too.
func (r *Reader) Slots() ([]uint32, error) {
	own, _, err := r.outer.filled()
	return own, err
}

// Dump reads the lines of a slot. While the agent changes it in place, some
// lines may be missing.
func (r *Reader) Dump(number uint32) (map[Key]Entry, error) { return dump(r.outer, number) }

// Close closes the descriptor.
func (r *Reader) Close() error { return r.outer.close() }
