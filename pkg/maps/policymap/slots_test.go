package policymap

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
)

// fakeArray keeps slots in memory, writes down every operation, and fails where told.
type fakeArray struct {
	mu       sync.Mutex
	slots    map[uint32]map[key]entry
	log      []string
	failAdd  error // of the next update with records, half of which it makes
	failDel  error
	failRead error
	failFill int // refreshes that fail after half of their slots
	batches  [][]uint32
}

func newFake() *fakeArray { return &fakeArray{slots: map[uint32]map[key]entry{}} }

func (a *fakeArray) filled() (own, strays []uint32, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n := range a.slots {
		own = append(own, n)
	}
	return own, nil, nil
}

func (a *fakeArray) open(n uint32) (contents, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.slots[n] == nil {
		return nil, fmt.Errorf("slot %d holds no map", n)
	}
	return fakeContents{a, n}, nil
}

func (a *fakeArray) refresh(slots []uint32) ([]uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.batches = append(a.batches, append([]uint32(nil), slots...))
	if a.failFill > 0 {
		a.failFill--
		slots = slots[:len(slots)/2]
		for _, n := range slots {
			a.slots[n] = map[key]entry{}
		}
		return slots, errors.New("no memory")
	}
	for _, n := range slots {
		a.slots[n] = map[key]entry{}
	}
	return slots, nil
}

func (a *fakeArray) empty(slots []uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.batches = append(a.batches, append([]uint32(nil), slots...))
	for _, n := range slots { // none, as the shared one is never written to
		delete(a.slots, n)
	}
	return nil
}

func (a *fakeArray) close() error { return nil }

type fakeContents struct {
	a *fakeArray
	n uint32
}

func (c fakeContents) update(k []key, e []entry) error {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	err := c.a.failAdd
	if err != nil && len(k) > 0 {
		c.a.failAdd = nil
		k = k[:len(k)/2]
	} else {
		err = nil
	}
	for i := range k {
		c.a.slots[c.n][k[i]] = e[i]
		c.a.log = append(c.a.log, fmt.Sprintf("add deny=%d bits=%d", e[i].Deny, k[i].PrefixLen))
	}
	return err
}

func (c fakeContents) delete(k []key) error {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	if err := c.a.failDel; err != nil && len(k) > 0 {
		c.a.failDel = nil
		return err
	}
	for _, k := range k {
		c.a.log = append(c.a.log, fmt.Sprintf("delete deny=%d bits=%d", c.a.slots[c.n][k].Deny, k.PrefixLen))
		delete(c.a.slots[c.n], k)
	}
	return nil
}

func (c fakeContents) each(fn func(key, entry)) error {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	for k, e := range c.a.slots[c.n] {
		fn(k, e)
	}
	return c.a.failRead
}

func (c fakeContents) close() error { return nil }

func fakeSlots(t *testing.T, a array, l Limits) *Slots {
	t.Helper()
	l, err := l.complete()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSlots(a, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// listed are the lines of a policy.
func listed(policy map[Key]Entry) (out []Line) {
	for k, e := range policy {
		out = append(out, Line{k, e})
	}
	return out
}

// lines makes n lines for the identities from id on.
func lines(id uint32, n int) map[Key]Entry {
	want := map[Key]Entry{}
	for i := range uint32(n) {
		want[Key{Identity: id + i, Protocol: 6, Port: 80, PortBits: 16}] = Entry{Order: 9, Rule: 3}
	}
	return want
}

// denied are the same lines, which deny.
func denied(want map[Key]Entry) map[Key]Entry {
	for k, e := range want {
		e.Deny = true
		want[k] = e
	}
	return want
}

func with(base map[Key]Entry, more map[Key]Entry) map[Key]Entry {
	all := maps.Clone(base)
	maps.Copy(all, more)
	return all
}

func mustAcquire(t *testing.T, s *Slots, group string, version uint64, want map[Key]Entry) uint32 {
	t.Helper()
	n, err := s.Acquire(group, version, listed(want))
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 || n == s.scratch() {
		t.Fatalf("slot %d was given out", n)
	}
	return n
}

func mustUpdate(t *testing.T, s *Slots, n uint32, group string, version uint64, want map[Key]Entry) uint32 {
	t.Helper()
	m, err := s.Update(n, group, version, listed(want))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Dump(m)
	if err != nil || !maps.Equal(got, want) {
		t.Fatalf("slot %d holds %v, %v, want %v", m, got, err, want)
	}
	return m
}

func TestAnInPlaceDeltaAddsBeforeItRemoves(t *testing.T) {
	a := newFake()
	s := fakeSlots(t, a, Limits{})
	anyPort := func(id uint32) Key { return Key{Identity: id, Protocol: 6} }
	port := func(id uint32) Key { return Key{Identity: id, Protocol: 6, Port: 80, PortBits: 16} }
	base := map[Key]Entry{{}: {Order: 0, Deny: true}}
	old := with(base, map[Key]Entry{
		port(1): {Order: 1}, anyPort(1): {Order: 1}, port(2): {Order: 2, Deny: true}, anyPort(2): {Order: 2, Deny: true},
	})
	want := with(base, map[Key]Entry{
		port(3): {Order: 1}, anyPort(3): {Order: 1}, port(4): {Order: 2, Deny: true}, anyPort(4): {Order: 2, Deny: true},
	})
	n := mustAcquire(t, s, "g", 1, old)
	a.log = nil
	if m := mustUpdate(t, s, n, "g", 2, want); m != n {
		t.Fatalf("a small delta of a slot that one group uses went to another slot")
	}
	got := strings.Join(a.log, "\n")
	expect := strings.Join([]string{
		"add deny=1 bits=64", "add deny=1 bits=48", "add deny=0 bits=64", "add deny=0 bits=48",
		"delete deny=0 bits=48", "delete deny=0 bits=64", "delete deny=1 bits=48", "delete deny=1 bits=64",
	}, "\n")
	if got != expect {
		t.Errorf("got\n%s\nwant\n%s", got, expect)
	}
}

func TestWhatDoesNotFitInPlaceGoesToAnotherSlotWhole(t *testing.T) {
	base := lines(1, 10)
	changed := maps.Clone(base)
	for k, e := range changed {
		e.Deny = true
		changed[k] = e
		break
	}
	swapped := maps.Clone(base)
	k := Key{Identity: 1, Protocol: 6, Port: 80, PortBits: 16}
	swapped[Key{Identity: 1, Protocol: 6, Port: 81, PortBits: 16}] = swapped[k]
	delete(swapped, k)
	for name, c := range map[string]struct {
		want    map[Key]Entry
		version uint64
		other   string // another group that uses the slot
	}{
		"a changed line":                          {changed, 2, ""},
		"a plane that gains and loses":            {swapped, 2, ""},
		"a large delta that denies":               {with(base, denied(lines(100, maxDelta+1))), 2, ""},
		"a large delta with one line that denies": {with(base, with(lines(100, maxDelta), denied(lines(99, 1)))), 2, ""},
		"a large delta that goes both ways":       {with(lines(1, 9), lines(100, maxDelta)), 2, ""},
		"a slot that another group uses":          {with(base, lines(100, 1)), 2, "h"},
		"a policy computed from the same version": {with(base, lines(100, 1)), 1, ""},
		"a policy computed from older facts":      {with(base, lines(100, 1)), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeSlots(t, newFake(), Limits{})
			n := mustAcquire(t, s, "g", 1, base)
			if c.other != "" && mustAcquire(t, s, c.other, 1, base) != n {
				t.Fatal("equal policies do not share")
			}
			m := mustUpdate(t, s, n, "g", c.version, c.want)
			if m == n {
				t.Fatal("changed in place")
			}
			if got, err := s.Dump(n); err != nil || !maps.Equal(got, base) {
				t.Errorf("the former slot holds %v, %v", got, err)
			}
			if err := s.Release(n, "g"); err != nil {
				t.Error(err)
			}
			if err := s.Release(n, "g"); err == nil {
				t.Error("released twice")
			}
		})
	}
}

func TestALargeDeltaOfAllowsIsMadeInPlaceOnlyWhereItSavesWork(t *testing.T) {
	s := fakeSlots(t, newFake(), Limits{})
	few, many, most := lines(1, 10), lines(1, 3000), lines(1, 1000)
	n := mustAcquire(t, s, "g", 1, few)
	if m := mustUpdate(t, s, n, "g", 2, many); m != n {
		t.Error("2990 lines more went to another slot")
	}
	if m := mustUpdate(t, s, n, "g", 3, lines(1, 2000)); m != n {
		t.Error("1000 lines fewer went to another slot")
	}
	if m := mustUpdate(t, s, n, "g", 4, most); m != n {
		t.Error("as many lines fewer as stay went to another slot")
	}
	if m := mustUpdate(t, s, n, "g", 5, few); m == n {
		t.Error("990 lines were removed in place, where ten are left")
	}
}

func TestAStaleMemberDoesNotTakeANewPolicyFromItsGroup(t *testing.T) {
	s := fakeSlots(t, newFake(), Limits{})
	p1, p2 := lines(1, 3), lines(1, 4)
	n := mustAcquire(t, s, "g", 1, p1)
	mustAcquire(t, s, "g", 1, p1) // a second endpoint of the group
	if m := mustUpdate(t, s, n, "g", 3, p2); m != n {
		t.Fatal("not in place")
	}
	stale := mustUpdate(t, s, n, "g", 2, p1)
	if got, _ := s.Dump(n); stale == n || !maps.Equal(got, p2) {
		t.Errorf("the first endpoint's policy became %v", got)
	}
	if err := s.Release(n, "g"); err != nil {
		t.Fatal(err)
	}
	if m := mustUpdate(t, s, stale, "g", 3, p2); m != n {
		t.Errorf("caught up, but in slot %d, want %d", m, n)
	}
}

func TestPoliciesOfOneHashShareNoSlotUnlessTheyAreEqual(t *testing.T) {
	s := fakeSlots(t, newFake(), Limits{})
	n := mustAcquire(t, s, "g", 1, lines(1, 5))
	other, err := encodeAll(listed(lines(1, 6)))
	if err != nil {
		t.Fatal(err)
	}
	s.byHash[hashOf(other)] = s.used[n] // as if the two had one hash
	if m := mustAcquire(t, s, "h", 1, lines(1, 6)); m == n {
		t.Fatal("another policy got the slot because of its hash")
	}
	if m := mustAcquire(t, s, "i", 1, lines(1, 5)); m != n {
		t.Fatal("an equal policy got another slot")
	}
}

func TestAKeyThatIsThereTwiceIsRefused(t *testing.T) {
	s := fakeSlots(t, newFake(), Limits{})
	twice := append(listed(lines(1, 5)), Line{Key: listed(lines(3, 1))[0].Key, Entry: Entry{Deny: true}})
	if n, err := s.Acquire("g", 1, twice); err == nil || n != 0 || !strings.Contains(err.Error(), "twice") {
		t.Fatalf("slot %d, %v", n, err)
	}
}

func TestTooManyLinesChangeNothing(t *testing.T) {
	a := newFake()
	s := fakeSlots(t, a, Limits{Entries: 5})
	n := mustAcquire(t, s, "g", 1, lines(1, 5))
	a.log = nil
	var full *FullError
	_, err := s.Acquire("g", 2, listed(lines(1, 6)))
	if !errors.Is(err, ErrFull) || !errors.As(err, &full) || full.Have != 6 || full.Limit != 5 {
		t.Errorf("acquire: %v", err)
	}
	if m, err := s.Update(n, "g", 2, listed(lines(1, 6))); !errors.Is(err, ErrFull) || m != n {
		t.Errorf("update: slot %d, %v", m, err)
	}
	if len(a.log) > 0 {
		t.Errorf("the maps were written: %v", a.log)
	}
}

func TestWhenAllSlotsAreUsedItSaysSo(t *testing.T) {
	s := fakeSlots(t, newFake(), Limits{Slots: 6, Spares: 2}) // 1 to 4
	held := map[uint32]bool{}
	for i := range uint32(4) {
		held[mustAcquire(t, s, "g", 1, lines(i, 1))] = true
	}
	if len(held) != 4 {
		t.Fatalf("slots %v", held)
	}
	_, err := s.Acquire("g", 1, listed(lines(50, 1)))
	var full *FullError
	if !errors.As(err, &full) || full.Have != 4 || full.Limit != 4 {
		t.Fatalf("a fifth policy: %v", err)
	}
	if err := s.Release(2, "g"); err != nil {
		t.Fatal(err)
	}
	if n := mustAcquire(t, s, "g", 1, lines(50, 1)); n != 2 {
		t.Errorf("the freed slot is 2, got %d", n)
	}
}

func TestAReleasedSlotIsReplacedOnlyAfterAGracePeriod(t *testing.T) {
	a := newFake()
	s := fakeSlots(t, a, Limits{Slots: 6, Spares: 1})
	n := mustAcquire(t, s, "g", 1, lines(1, 1))
	for range 3 { // use up the others
		mustAcquire(t, s, "g", 1, lines(uint32(10+s.Stats().Used), 1))
	}
	a.mu.Lock()
	a.batches = nil
	a.mu.Unlock()
	if err := s.Release(n, "g"); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, s, "g", 1, lines(90, 1))
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.batches) != 2 || a.batches[0][0] != s.scratch() || a.batches[1][0] != n {
		t.Errorf("batches %v, want the scratch slot and then %d", a.batches, n)
	}
}

func TestReleasedSlotsBeyondTheSparesGiveTheirMapsBack(t *testing.T) {
	a := newFake()
	s := fakeSlots(t, a, Limits{Slots: 64, Entries: 16, Spares: 4})
	var used []uint32
	for id := range uint32(20) {
		used = append(used, mustAcquire(t, s, fmt.Sprint(id), 1, lines(id+1, 1)))
	}
	for id, n := range used {
		if err := s.Release(n, fmt.Sprint(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.refill(); err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	held, _, _ := a.filled()
	if st.Used != 0 || st.Released != 0 || st.Spare != 4 || len(held) != 4 {
		t.Fatalf("20 policies came and went: %+v, %d maps are held", st, len(held))
	}
	for id := range uint32(20) { // and all can be used again
		mustAcquire(t, s, fmt.Sprint(id), 1, lines(id+1, 1))
	}
}

func TestAFailedFillGivesNoSlotAndDirtiesNone(t *testing.T) {
	a := newFake()
	s := fakeSlots(t, a, Limits{Slots: 5, Spares: 3})
	a.failAdd = errors.New("no memory")
	if n, err := s.Acquire("g", 1, listed(lines(1, 10))); err == nil || n != 0 {
		t.Fatalf("slot %d, %v", n, err)
	}
	for i := range uint32(3) { // every slot, so also the one that was half filled
		want := lines(100*i, 2)
		n := mustAcquire(t, s, "g", 1, want)
		if got, err := s.Dump(n); err != nil || !maps.Equal(got, want) {
			t.Errorf("slot %d holds %v, %v", n, got, err)
		}
	}
}

func TestAFailedBatchKeepsWhatWentIn(t *testing.T) {
	a := newFake()
	a.failFill = 1 << 30
	s := fakeSlots(t, a, Limits{Slots: 10, Spares: 4})
	for i := 0; ; i++ {
		_, err := s.Acquire("g", 1, listed(lines(uint32(i), 1)))
		if err != nil {
			if errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "no memory") {
				t.Fatalf("the batch failed, got %v", err)
			}
			break
		}
	}
	a.mu.Lock()
	a.failFill = 0
	a.mu.Unlock()
	used := s.Stats().Used
	for i := range 8 - used {
		mustAcquire(t, s, "g", 1, lines(uint32(1000+i), 1))
	}
	if st := s.Stats(); st.Used != 8 || st.Spare+st.Released+st.Free != 0 {
		t.Errorf("a slot was lost: %+v", st)
	}
}

func TestAHalfMadeDeltaIsToldAndMendedByTheNextUpdate(t *testing.T) {
	base, want := lines(1, 10), with(lines(1, 5), lines(100, 4))
	for name, fail := range map[string]func(*fakeArray){
		"while adding":   func(a *fakeArray) { a.failAdd = errors.New("injected") },
		"while removing": func(a *fakeArray) { a.failDel = errors.New("injected") },
	} {
		t.Run(name, func(t *testing.T) {
			a := newFake()
			s := fakeSlots(t, a, Limits{})
			n := mustAcquire(t, s, "g", 1, base)
			fail(a)
			m, err := s.Update(n, "g", 2, listed(want))
			var delta *DeltaError
			if !errors.As(err, &delta) || m != n {
				t.Fatalf("slot %d, %v", m, err)
			}
			if delta.AddsDone != (name == "while removing") || delta.Adds != 4 || delta.Deletes != 5 {
				t.Errorf("reported %+v", delta)
			}
			// Its contents are not what anybody else may be given.
			if other := mustAcquire(t, s, "h", 1, base); other == n {
				t.Error("the half-changed slot was shared as the former policy")
			}
			if other := mustAcquire(t, s, "i", 1, want); other == n {
				t.Error("the half-changed slot was shared as the wanted policy")
			}
			mustUpdate(t, s, n, "g", 3, with(want, lines(500, 1)))
		})
	}
}

func TestASlotThatCannotBeReadIsReplaced(t *testing.T) {
	a := newFake()
	a.slots[3] = map[key]entry{}
	s := fakeSlots(t, a, Limits{})
	if err := s.Adopt(3, "g"); err != nil {
		t.Fatal(err)
	}
	a.failRead = errors.New("injected")
	n, err := s.Update(3, "g", 1, listed(lines(1, 1)))
	if err != nil || n == 3 {
		t.Errorf("slot %d, %v", n, err)
	}
}

func TestAClosedArrayRefuses(t *testing.T) {
	s := fakeSlots(t, newFake(), Limits{})
	n := mustAcquire(t, s, "g", 1, lines(1, 1))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, acquire := s.Acquire("g", 1, listed(lines(2, 1)))
	_, update := s.Update(n, "g", 2, listed(lines(2, 1)))
	_, dump := s.Dump(n)
	for name, err := range map[string]error{
		"acquire": acquire, "update": update, "dump": dump, "release": s.Release(n, "g"), "adopt": s.Adopt(n, "g"),
	} {
		if !errors.Is(err, errClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	for _, l := range []Limits{{Slots: 3}, {Entries: -1}, {Entries: MaxEntries + 1}, {Spares: -1}} {
		if _, err := l.complete(); err == nil {
			t.Errorf("%+v was taken", l)
		}
	}
}
