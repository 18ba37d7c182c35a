package policymap

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	lineBytes  = 122  // of an LPM trie, measured; what the kernel reports is a third of it
	emptyBytes = 1024 // of an empty map and its descriptor structures, estimated
)

// signal wakes the goroutine up; one signal is enough for any number of slots.
func (s *Slots) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keepReady refills until Close. A failure is not lost: the slots stay in
// their lists, and an Acquire that finds no spare tries itself and reports it.
func (s *Slots) keepReady() {
	defer close(s.done)
	wait := time.Duration(0) // the first batch is made at once
	for {
		select {
		case <-s.wake:
		case <-s.stop:
			return
		}
		select {
		case <-time.After(wait):
		case <-s.stop:
			return
		}
		wait = gather
		if s.Stats().Left > 0 {
			continue // of these the empty ones are to be the spares: ReleaseUnadopted wakes us
		}
		_ = s.refill()
	}
}

// batch is the work of one refill; its slots are in none of the lists meanwhile.
type batch struct {
	dirty   []uint32 // released, get a fresh map and become spares
	surplus []uint32 // released, give their map back and become vacant
	vacant  []uint32 // become spares
}

// refill replaces the maps of released slots by fresh ones and adds vacant
// slots up to the number of spares, by one batch; released slots beyond that
// number give their maps back. Nobody else needs to call it; it returns at once
// if there is nothing to do.
func (s *Slots) refill() error {
	return s.outerLock.Do(func() error {
		b := s.takeForRefill()
		fresh := slices.Concat(b.dirty, b.vacant)
		if len(fresh)+len(b.surplus) == 0 {
			return nil
		}
		var done []uint32
		var err error
		if len(b.dirty)+len(b.surplus) > 0 {
			// A program may have read the old slot number just before the
			// endpoint was switched and not have looked the slot up yet.
			if err = s.outer.empty([]uint32{s.scratch()}); err != nil {
				err = fmt.Errorf("wait for programs that may still use released slots: %w", err)
			}
		}
		waited := err == nil
		if waited && len(fresh) > 0 {
			done, err = s.outer.refresh(fresh)
		}
		if waited && len(b.surplus) > 0 {
			if emptyErr := s.outer.empty(b.surplus); emptyErr != nil {
				err = errors.Join(err, emptyErr)
			} else {
				b.vacant = append(b.vacant, b.surplus...)
				b.surplus = nil
			}
		}
		s.putAfterRefill(b, done)
		return err
	})
}

func (s *Slots) takeForRefill() (b batch) {
	_ = s.lock.Do(func() error {
		if s.closed {
			return nil
		}
		room := max(0, s.limits.Spares-len(s.spare))
		n := min(room, len(s.dirty))
		b.dirty, b.surplus, s.dirty = slices.Clone(s.dirty[:n]), slices.Clone(s.dirty[n:]), nil
		n = min(room-n, len(s.vacant))
		b.vacant = slices.Clone(s.vacant[len(s.vacant)-n:])
		s.vacant = s.vacant[:len(s.vacant)-n]
		s.refilling = len(b.dirty)+len(b.surplus)+n > 0
		return nil
	})
	return b
}

func (s *Slots) putAfterRefill(b batch, done []uint32) {
	_ = s.lock.Do(func() error {
		s.refilling = false
		s.spare = append(s.spare, done...)
		isDone := map[uint32]bool{}
		for _, n := range done {
			isDone[n] = true
		}
		for _, n := range slices.Concat(b.dirty, b.surplus) {
			if !isDone[n] {
				s.dirty = append(s.dirty, n)
			}
		}
		for _, n := range b.vacant {
			if !isDone[n] {
				s.vacant = append(s.vacant, n)
			}
		}
		return nil
	})
}

// Stats counts slots for metrics.
type Stats struct {
	Used     int // hold a policy
	Spare    int // hold an empty map and wait for a policy
	Released int // wait for a fresh map
	Free     int // hold no map of their own
	Left     int // left by a former agent and not adopted
	Users    int // endpoints
	Lines    int // of all policies whose contents are known
}

// Stats counts the slots.
func (s *Slots) Stats() Stats {
	var st Stats
	_ = s.lock.Do(func() error {
		st = Stats{
			Used: len(s.used), Spare: len(s.spare), Released: len(s.dirty), Free: len(s.vacant), Left: len(s.unclaimed),
		}
		for _, u := range s.used {
			for _, n := range u.users {
				st.Users += n
			}
			st.Lines += len(u.records)
		}
		return nil
	})
	return st
}

// MemoryBytes estimates the kernel memory of all policies: 122 bytes a line,
// 1 KiB a map and 8 bytes a slot.
func (s *Slots) MemoryBytes() uint64 {
	st := s.Stats()
	return uint64(st.Lines)*lineBytes + uint64(st.Used+st.Spare+st.Released+st.Left)*emptyBytes + 8*uint64(s.limits.Slots)
}
