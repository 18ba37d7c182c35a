package policymap

import (
	"errors"
	"fmt"
	"maps"
	"testing"
)

// failing is an array whose n-th write of lines, of either kind, fails once when
// it has made a part of them.
type failing struct {
	*fakeArray
	at, writes int
}

func (f *failing) open(n uint32) (contents, error) {
	c, err := f.fakeArray.open(n)
	return failingContents{c, f}, err
}

type failingContents struct {
	contents
	f *failing
}

func (c failingContents) turn() bool {
	c.f.writes++
	return c.f.writes == c.f.at
}

func (c failingContents) update(k []key, e []entry) error {
	if len(k) > 0 && c.turn() {
		c.contents.update(k[:len(k)/2], e[:len(k)/2])
		return errors.New("injected failure")
	}
	return c.contents.update(k, e)
}

func (c failingContents) delete(k []key) error {
	if len(k) > 0 && c.turn() {
		c.contents.delete(k[:len(k)/2])
		return errors.New("injected failure")
	}
	return c.contents.delete(k)
}

// Whichever write fails, the retry leaves in the kernel what was computed.
func TestB54_ARetryAfterAFailedWriteLeavesTheWholePolicy(t *testing.T) {
	first := lines(1, 9)
	grown := with(first, lines(100, 7))
	shrunk := with(lines(100, 7), lines(1, 4))
	other := with(lines(2000, 200), lines(1, 3))
	for at := 1; ; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			a := &failing{fakeArray: newFake(), at: at}
			s := fakeSlots(t, a, Limits{Slots: 32, Spares: 4})
			failed := 0
			again := func(do func() error) {
				t.Helper()
				err := do()
				if err != nil {
					failed++
					err = do()
				}
				if err != nil {
					t.Fatalf("the retry: %v", err)
				}
			}
			var n uint32
			again(func() (err error) { n, err = s.Acquire("a", 1, listed(first)); return err })
			for i, want := range []map[Key]Entry{first, grown, shrunk, other, first} {
				again(func() error {
					m, err := s.Update(n, "a", uint64(i+2), listed(want))
					if m != n {
						if err := s.Release(n, "a"); err != nil {
							t.Fatal(err)
						}
					}
					n = m
					return err
				})
				if got, err := s.Dump(n); err != nil || !maps.Equal(got, want) {
					t.Fatalf("policy %d: the kernel has %d lines, %d are wanted, %v", i, len(got), len(want), err)
				}
			}
			if failed > 1 || failed == 0 && a.writes >= at {
				t.Errorf("%d failures", failed)
			}
		})
		if at > 12 {
			break
		}
	}
}

// What somebody else did to a map is mended.
func TestB54_LinesThatSomebodyElseTouchedAreMended(t *testing.T) {
	a := newFake()
	s := fakeSlots(t, a, Limits{Slots: 32, Spares: 4})
	want, other := lines(1, 9), lines(50, 5)
	n, m := mustAcquire(t, s, "a", 1, want), mustAcquire(t, s, "b", 1, other)
	touch := func(fn func(map[key]entry)) {
		a.mu.Lock()
		defer a.mu.Unlock()
		fn(a.slots[n])
	}
	one := func(contents map[key]entry) (k key) {
		for k = range contents {
			break
		}
		return k
	}
	for what, c := range map[string]struct {
		touch func(map[key]entry)
		lines int
	}{
		"nothing":      {func(map[key]entry) {}, 0},
		"one removed":  {func(c map[key]entry) { delete(c, one(c)) }, 1},
		"all removed":  {func(c map[key]entry) { clear(c) }, 9},
		"one added":    {func(c map[key]entry) { c[key{PrefixLen: anyProtocolBits}] = entry{Order: 7} }, 1},
		"one changed":  {func(c map[key]entry) { k := one(c); e := c[k]; e.Deny ^= 1; c[k] = e }, 1},
		"one replaced": {func(c map[key]entry) { delete(c, one(c)); c[key{PrefixLen: anyProtocolBits}] = entry{} }, 2},
	} {
		touch(c.touch)
		if mended, err := s.Repair(); err != nil || mended != c.lines {
			t.Errorf("%s: %d lines were mended, want %d; %v", what, mended, c.lines, err)
		}
		for slot, policy := range map[uint32]map[Key]Entry{n: want, m: other} {
			if got, err := s.Dump(slot); err != nil || !maps.Equal(got, policy) {
				t.Errorf("%s: slot %d has %d lines of %d, %v", what, slot, len(got), len(policy), err)
			}
		}
	}
	touch(func(c map[key]entry) { delete(c, one(c)) })
	a.failAdd = errors.New("injected failure")
	if _, err := s.Repair(); err == nil {
		t.Error("a failure to mend is kept quiet")
	}
	if mended, err := s.Repair(); err != nil || mended != 1 {
		t.Errorf("after a failure %d lines were mended, %v", mended, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if mended, err := s.Repair(); err != nil || mended != 0 {
		t.Errorf("closed: %d lines were mended, %v", mended, err)
	}
}
