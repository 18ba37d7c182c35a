package policymap

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// Name is the outer array's name and the last part of its pin path.
	Name = "weir_policy"
	// MaxEntries is the room of one slot's map. Nothing is set aside for it, so that
	// Limits.Entries may be any number below and another one after a restart.
	MaxEntries = 1 << 20
	// DefaultSlots is the number of slots unless another is given. Slot 0 and
	// the last one are never used for a policy.
	DefaultSlots = 8192
	// DefaultSpares is the number of empty maps kept ready unless another is given.
	DefaultSpares = 32

	noPrealloc = 1   // BPF_F_NO_PREALLOC
	maxDelta   = 128 // lines that an in-place delta may add and remove, unless it goes one way
	// gather is how long the goroutine waits for more slots to put into a batch.
	gather = 50 * time.Millisecond
)

// Limits are the sizes of the policy maps. A zero field means its default.
type Limits struct {
	Slots   uint32 // of the outer array; at least 4
	Entries int    // lines of one policy, at most MaxEntries
	Spares  int    // empty maps kept ready
}

// ErrFull is wrapped by every error that means "there is no room": the caller
// puts in less, or leaves its endpoint on slot 0, which denies everything.
var ErrFull = errors.New("no room in the policy maps")

// What there may be no room for.
const (
	Lines    = "lines of one policy"
	Policies = "policies"
)

// FullError says what there is no room for. It wraps ErrFull.
type FullError struct {
	What  string // Lines or Policies
	Have  int    // that are wanted or used
	Limit int
}

// Error names the counts and what to do.
func (e *FullError) Error() string {
	return fmt.Sprintf("no room in the policy maps: %d %s, the limit is %d; raise it or merge rules", e.Have, e.What, e.Limit)
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// DeltaError says that a change in place stopped half way. The slot's contents
// are between the former and the wanted ones; the next Update reads them again.
type DeltaError struct {
	Slot          uint32
	Adds, Deletes int  // that were to be made
	AddsDone      bool // false: none of the removals and an unknown part of the additions were made
	Err           error
}

// Error names the phase.
func (e *DeltaError) Error() string {
	if !e.AddsDone {
		return fmt.Sprintf("change policy slot %d in place: some of %d additions and none of %d removals are made: %v", e.Slot, e.Adds, e.Deletes, e.Err)
	}
	return fmt.Sprintf("change policy slot %d in place: all %d additions and some of %d removals are made: %v", e.Slot, e.Adds, e.Deletes, e.Err)
}

// Unwrap returns the failure of the write.
func (e *DeltaError) Unwrap() error { return e.Err }

// slot is a policy in use.
type slot struct {
	number  uint32
	users   map[string]int // by group
	version uint64         // the newest that its contents were computed for
	known   bool           // records and hash are those of the map
	records []record       // in the order of compareKeys
	hash    uint64
}

// Slots is weir_policy. It is safe for concurrent use.
type Slots struct {
	m      *ebpf.Map // nil in tests with another array
	outer  array
	limits Limits

	// outerLock is held around one batch into the outer array, which waits for
	// a grace period. It is taken before lock.
	outerLock bpf.UpdateLock

	// lock guards the fields below and is held around one fill or delta.
	lock      bpf.UpdateLock
	used      map[uint32]*slot
	byHash    map[uint64]*slot // one for each hash, of those whose contents are known
	spare     []uint32         // hold an empty map
	dirty     []uint32         // released; hold a map with contents
	vacant    []uint32         // hold no map of their own
	unclaimed map[uint32]bool  // left by a former agent and not adopted yet
	refilling bool             // slots are in none of the lists while a batch is under way
	closed    bool

	wake     chan struct{} // room for one
	stop     chan struct{}
	stopOnce sync.Once
	done     chan struct{}
}

// Open opens the pinned array or creates and pins an empty one, and starts the
// goroutine that keeps empty maps ready.
func Open(root bpf.Root, limits Limits) (*Slots, error) {
	limits, err := limits.complete()
	if err != nil {
		return nil, err
	}
	m, err := bpf.OpenOrCreate(outerSpec(limits.Slots), root.Map(Name))
	if err != nil {
		return nil, err
	}
	outer := &kernelArray{m: m}
	if err := outer.openShared(); err != nil {
		return nil, errors.Join(err, outer.close())
	}
	s, err := newSlots(outer, limits)
	if err != nil {
		return nil, errors.Join(err, outer.close())
	}
	s.m = m
	return s, nil
}

func (l Limits) complete() (Limits, error) {
	if l.Slots == 0 {
		l.Slots = DefaultSlots
	}
	if l.Entries == 0 {
		l.Entries = MaxEntries
	}
	if l.Spares == 0 {
		l.Spares = DefaultSpares
	}
	if l.Slots < 4 || l.Entries < 1 || l.Entries > MaxEntries || l.Spares < 1 {
		return l, fmt.Errorf("limits of the policy maps %+v: give 4 slots or more, 1 to %d lines and 1 spare or more", l, MaxEntries)
	}
	return l, nil
}

func newSlots(outer array, limits Limits) (*Slots, error) {
	s := &Slots{
		outer: outer, limits: limits,
		used: map[uint32]*slot{}, byHash: map[uint64]*slot{}, unclaimed: map[uint32]bool{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	own, strays, err := outer.filled()
	if err != nil {
		return nil, err
	}
	taken := map[uint32]bool{}
	for _, n := range own {
		if s.inRange(n) {
			s.unclaimed[n], taken[n] = true, true
		}
	}
	for _, n := range strays {
		if s.inRange(n) {
			s.dirty, taken[n] = append(s.dirty, n), true
		}
	}
	for n := s.scratch() - 1; n > 0; n-- { // low numbers are taken first
		if !taken[n] {
			s.vacant = append(s.vacant, n)
		}
	}
	go s.keepReady()
	s.signal()
	return s, nil
}

// scratch is the slot whose only use is to wait for a grace period.
func (s *Slots) scratch() uint32 { return s.limits.Slots - 1 }

func (s *Slots) inRange(n uint32) bool { return n > 0 && n < s.scratch() }

// Map is the kernel's array of maps, for the loader.
func (s *Slots) Map() *ebpf.Map { return s.m }

// Close stops the goroutine and closes the array's descriptor. The pin keeps
// the array, and with it the policies.
func (s *Slots) Close() error {
	s.stopOnce.Do(func() { close(s.stop) })
	<-s.done
	return s.outerLock.Do(func() error {
		return s.lock.Do(func() error {
			if s.closed {
				return nil
			}
			s.closed = true
			return s.outer.close()
		})
	})
}

// Acquire returns a slot that holds exactly want, in any order, and counts the caller's group
// as a user. Version grows with everything that want was computed from; see
// Update. On failure nothing has changed; ErrFull means no room.
func (s *Slots) Acquire(group string, version uint64, want []Line) (uint32, error) {
	records, err := s.encode(want)
	if err != nil {
		return 0, err
	}
	return s.acquire(group, version, records, hashOf(records))
}

func (s *Slots) acquire(group string, version uint64, records []record, hash uint64) (number uint32, err error) {
	for number == 0 {
		empty := false
		err := s.lock.Do(func() error {
			if s.closed {
				return errClosed
			}
			u := s.holder(records, hash)
			if u == nil {
				if len(s.spare) == 0 {
					empty = true
					return s.exhausted()
				}
				var err error
				if u, err = s.fill(records, hash); err != nil {
					return err
				}
			}
			u.users[group]++
			u.version = max(u.version, version)
			number = u.number
			return nil
		})
		if err == nil && empty {
			err = s.refill()
		}
		if err != nil {
			return 0, fmt.Errorf("get a policy slot for %d lines: %w", len(records), err)
		}
	}
	return number, nil
}

var errClosed = errors.New("the policy maps are closed")

// exhausted reports a *FullError if no slot can become a spare. Locked.
func (s *Slots) exhausted() error {
	if s.refilling || len(s.dirty)+len(s.vacant) > 0 {
		return nil
	}
	return &FullError{Policies, len(s.used) + len(s.unclaimed), int(s.scratch()) - 1}
}

// fill writes records into a spare slot, which no packet reads yet. Locked.
func (s *Slots) fill(records []record, hash uint64) (*slot, error) {
	n := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	if len(s.spare) < s.limits.Spares/2 {
		s.signal()
	}
	ordered := slices.Clone(records)
	sortForAdding(ordered)
	err := s.write(n, func(c contents) error { return c.update(split(ordered)) })
	if err != nil {
		s.dirty = append(s.dirty, n)
		s.signal()
		return nil, err
	}
	u := &slot{number: n, users: map[string]int{}}
	s.used[n] = u
	s.remember(u, records, hash)
	return u, nil
}

// write opens a slot's map for one operation.
func (s *Slots) write(n uint32, fn func(contents) error) error {
	c, err := s.outer.open(n)
	if err != nil {
		return err
	}
	return errors.Join(fn(c), c.close())
}

// Update makes the group's policy want. It returns the slot that holds it,
// which is number itself if the contents are equal already or could be changed
// in place. If another number comes back, the caller has both slots: it
// switches its endpoint and then calls Release for the former one. On failure
// the caller still has number only; unless the error is a *DeltaError nothing
// has changed.
//
// Version grows with everything that want was computed from (the policy
// repository's revision and the set of identities). A slot is changed in place
// only to a newer version, so that an endpoint that computed its policy from
// older facts cannot take a newer one away from the others of its group.
func (s *Slots) Update(number uint32, group string, version uint64, want []Line) (uint32, error) {
	records, err := s.encode(want)
	if err != nil {
		return number, err
	}
	hash := hashOf(records)
	kept := false
	err = s.lock.Do(func() error {
		u, err := s.usedBy(number, group)
		if err != nil {
			return err
		}
		if !u.known && s.learn(u) != nil {
			return nil // what cannot be read is replaced as a whole
		}
		if !same(u.records, records) {
			kept, err = s.changeInPlace(u, group, version, records, hash)
			return err
		}
		kept = true
		u.version = max(u.version, version)
		return nil
	})
	if err != nil || kept {
		return number, err
	}
	other, err := s.acquire(group, version, records, hash)
	if err != nil {
		return number, err
	}
	return other, nil
}

// changeInPlace applies the delta to a slot if the package's rules allow it.
// Locked.
func (s *Slots) changeInPlace(u *slot, group string, version uint64, want []record, hash uint64) (bool, error) {
	if s.holder(want, hash) != nil || len(u.users) != 1 || u.users[group] == 0 || version <= u.version {
		return false, nil
	}
	d := difference(u.records, want)
	if !d.fitsInPlace(len(u.records)) {
		return false, nil
	}
	sortForAdding(d.adds)
	sortForDeleting(d.deletes)
	failure := &DeltaError{Slot: u.number, Adds: len(d.adds), Deletes: len(d.deletes)}
	s.forget(u)
	err := s.write(u.number, func(c contents) error {
		if err := c.update(split(d.adds)); err != nil {
			return err
		}
		failure.AddsDone = true
		keys, _ := split(d.deletes)
		return c.delete(keys)
	})
	if err != nil {
		failure.Err = err
		return false, failure
	}
	s.remember(u, want, hash)
	u.version = version
	return true, nil
}

// Release gives up one use of a slot by the group. The caller has switched its
// endpoint away before. The last user's slot is emptied in the background.
func (s *Slots) Release(number uint32, group string) error {
	return s.lock.Do(func() error {
		u, err := s.usedBy(number, group)
		if err != nil {
			return err
		}
		if u.users[group]--; u.users[group] == 0 {
			delete(u.users, group)
		}
		if len(u.users) == 0 {
			s.forget(u)
			delete(s.used, number)
			s.dirty = append(s.dirty, number)
			s.signal()
		}
		return nil
	})
}

// usedBy finds a slot that the group uses. Locked.
func (s *Slots) usedBy(number uint32, group string) (*slot, error) {
	if s.closed {
		return nil, errClosed
	}
	u := s.used[number]
	if u == nil || u.users[group] == 0 {
		return nil, fmt.Errorf("policy slot %d is not used by group %q; acquire or adopt it first", number, group)
	}
	return u, nil
}

// holder finds a slot with these contents, nil if none is known. Locked.
func (s *Slots) holder(records []record, hash uint64) *slot {
	if u := s.byHash[hash]; u != nil && same(u.records, records) {
		return u
	}
	return nil
}

// encode checks the limit and the lines; nothing is changed yet.
func (s *Slots) encode(want []Line) ([]record, error) {
	if len(want) > s.limits.Entries {
		return nil, &FullError{Lines, len(want), s.limits.Entries}
	}
	return encodeAll(want)
}

// forget marks a slot's contents as unknown. Locked.
func (s *Slots) forget(u *slot) {
	if s.byHash[u.hash] == u {
		delete(s.byHash, u.hash)
	}
	u.known, u.records = false, nil
}

// remember notes a slot's contents. Locked.
func (s *Slots) remember(u *slot, records []record, hash uint64) {
	u.known, u.records, u.hash = true, records, hash
	if s.byHash[hash] == nil {
		s.byHash[hash] = u
	}
}
