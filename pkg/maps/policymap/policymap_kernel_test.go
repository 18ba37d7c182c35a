package policymap

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func openSlots(t *testing.T, limits Limits) (*Slots, bpf.Root) {
	t.Helper()
	root, err := bpf.OpenRoot(testutils.Kernel(t).BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(root, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(root.Map(Name)) })
	return s, root
}

// varied is a policy with every kind of line.
func varied(seed uint32, n int) map[Key]Entry {
	want := map[Key]Entry{
		{}:             {Order: 0, Rule: 1, Deny: true},
		{Direction: 1}: {Order: 0, Rule: 2},
	}
	for i := range uint32(n) {
		id := seed + i
		want[Key{Identity: id, Protocol: 6, Port: 80, PortBits: 16}] = Entry{Order: 1 << 40, Rule: i, ProxyPort: 15001}
		want[Key{Identity: id, Protocol: 17, Port: 0x8000, PortBits: 1}] = Entry{Order: 1 << 40, Rule: i, Deny: true}
		want[Key{Identity: id, Protocol: 132}] = Entry{Order: 1 << 33, Rule: i}
	}
	return want
}

func TestEqualPoliciesShareOneSlotOfTheKernel(t *testing.T) {
	s, _ := openSlots(t, Limits{})
	defer s.Close()
	want := varied(1000, 500)
	n := mustAcquire(t, s, "a", 1, want)
	if m := mustAcquire(t, s, "b", 1, maps.Clone(want)); m != n {
		t.Errorf("slots %d and %d for equal policies", n, m)
	}
	if got, err := s.Dump(n); err != nil || !maps.Equal(got, want) {
		t.Errorf("the kernel holds %d lines, %v, want %d", len(got), err, len(want))
	}
	if st := s.Stats(); st.Used != 1 || st.Users != 2 || st.Lines != len(want) {
		t.Errorf("stats %+v", st)
	}
	if mem := s.MemoryBytes(); mem < uint64(len(want))*lineBytes {
		t.Errorf("memory %d", mem)
	}
	if _, err := s.Dump(0); err == nil {
		t.Error("slot 0 holds a map")
	}
	empty := mustAcquire(t, s, "c", 1, nil)
	if got, err := s.Dump(empty); err != nil || len(got) != 0 || empty == n {
		t.Errorf("the empty policy: slot %d, %v, %v", empty, got, err)
	}
}

func TestTheKernelTakesADeltaInPlaceAndAnotherSlotForTheRest(t *testing.T) {
	s, _ := openSlots(t, Limits{})
	defer s.Close()
	base := varied(1000, 50)
	n := mustAcquire(t, s, "a", 1, base)
	more := with(base, lines(5000, 8))
	if m := mustUpdate(t, s, n, "a", 2, more); m != n {
		t.Errorf("eight more lines moved the policy to slot %d", m)
	}
	if m := mustUpdate(t, s, n, "a", 3, base); m != n {
		t.Errorf("eight lines fewer moved the policy to slot %d", m)
	}
	m := mustUpdate(t, s, n, "a", 4, varied(2000, 50))
	if m == n {
		t.Error("another policy was written over the former one")
	}
	if err := s.Release(n, "a"); err != nil {
		t.Error(err)
	}
}

func TestARestartAdoptsPoliciesAsTheyAre(t *testing.T) {
	limits := Limits{Slots: 64, Spares: 8}
	s, root := openSlots(t, limits)
	p1, p2, p3 := varied(1, 20), varied(100, 20), varied(200, 20)
	n1, n2, n3 := mustAcquire(t, s, "a", 7, p1), mustAcquire(t, s, "b", 7, p2), mustAcquire(t, s, "gone", 7, p3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	r, err := OpenReader(root) // a tool beside the agent
	if err != nil {
		t.Fatal(err)
	}
	if all, err := r.Slots(); err != nil || !slices.Contains(all, n1) || slices.Contains(all, 0) {
		t.Errorf("filled slots %v, %v", all, err)
	}
	if got, err := r.Dump(n2); err != nil || !maps.Equal(got, p2) {
		t.Errorf("slot %d: %v, %v", n2, got, err)
	}
	r.Close()

	s, err = Open(root, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		n     uint32
		group string
	}{{n1, "a"}, {n1, "a"}, {n2, "b"}} {
		if err := s.Adopt(c.n, c.group); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []uint32{0, 63, 64, 1 << 20} {
		if err := s.Adopt(n, "a"); err == nil {
			t.Errorf("slot %d was adopted", n)
		}
	}
	// A new policy does not land where an endpoint is still to be restored.
	if n := mustAcquire(t, s, "new", 1, varied(300, 3)); n == n3 {
		t.Error("a slot that nobody gave up was used")
	}
	if m := mustUpdate(t, s, n1, "a", 1, p1); m != n1 {
		t.Errorf("the same policy moved from slot %d to %d", n1, m)
	}
	if m := mustUpdate(t, s, n2, "b", 1, with(p2, lines(900, 2))); m != n2 {
		t.Error("a small delta after a restart was not made in place")
	}
	if m := mustAcquire(t, s, "c", 1, p1); m != n1 {
		t.Error("a new endpoint does not share an adopted policy")
	}
	s.ReleaseUnadopted()
	if err := s.refill(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Dump(n3); err == nil && len(got) != 0 { // it holds an empty map or none
		t.Errorf("the slot of a gone endpoint still holds %v", got)
	}
	if st := s.Stats(); st.Left != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestALimitOfLinesAndAnotherLayoutOfTheArray(t *testing.T) {
	s, root := openSlots(t, Limits{Slots: 8, Entries: 100, Spares: 2})
	defer s.Close()
	n := mustAcquire(t, s, "a", 1, lines(1, 100))
	if m, err := s.Update(n, "a", 2, listed(lines(1, 101))); !errors.Is(err, ErrFull) || m != n {
		t.Errorf("slot %d, %v", m, err)
	}
	if got, err := s.Dump(n); err != nil || len(got) != 100 {
		t.Errorf("the refused policy changed the former one: %d lines, %v", len(got), err)
	}
	var layout *bpf.LayoutError
	if _, err := Open(root, Limits{Slots: 16}); !errors.As(err, &layout) {
		t.Errorf("another number of slots: %v", err)
	}
}

// An agent that is started with another limit has it at once, also for a policy
// that an earlier agent left.
func TestTheLimitOfLinesIsThatOfTheAgentAndNotOfTheMap(t *testing.T) {
	s, root := openSlots(t, Limits{Slots: 8, Entries: 100, Spares: 2})
	n := mustAcquire(t, s, "a", 1, lines(1, 100))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const many = 200_000 // 50,000 blocks on four ports
	s, err := Open(root, Limits{Slots: 8, Entries: many, Spares: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Adopt(n, "a"); err != nil {
		t.Fatal(err)
	}
	if m := mustUpdate(t, s, n, "a", 2, lines(1, 101)); m != n {
		t.Errorf("one line more went to slot %d", m)
	}
	if m := mustUpdate(t, s, n, "a", 3, lines(1, many)); m != n {
		t.Errorf("lines that allow went to slot %d", m)
	}
	if _, err := s.Update(n, "a", 4, listed(lines(1, many+1))); !errors.Is(err, ErrFull) {
		t.Errorf("more than the limit: %v", err)
	}
}

func TestEndpointsChangeTheirPoliciesAtOnce(t *testing.T) {
	s, _ := openSlots(t, Limits{Slots: 40, Spares: 4})
	defer s.Close()
	policies := make([]map[Key]Entry, 6)
	for i := range policies {
		policies[i] = varied(uint32(100*i), 5+i)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(worker)))
			group := fmt.Sprint("g", worker/2)
			slot, err := s.Acquire(group, 0, listed(policies[0]))
			if err != nil {
				t.Error(err)
				return
			}
			for version := range uint64(60) {
				want := policies[rng.IntN(len(policies))]
				if rng.IntN(2) == 0 { // a policy of its own, near another
					want = with(want, lines(uint32(10000+100*worker+int(version)), 1))
				}
				next, err := s.Update(slot, group, version+1, listed(want))
				if err != nil {
					t.Error(err)
					return
				}
				if next != slot {
					if err := s.Release(slot, group); err != nil {
						t.Error(err)
						return
					}
				}
				slot = next
			}
			if err := s.Release(slot, group); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.refill(); err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	if st.Used != 0 || st.Users != 0 || st.Spare+st.Released+st.Free != 38 {
		t.Errorf("slots were lost: %+v", st)
	}
	for n := range uint32(40) {
		if got, err := s.Dump(n); err == nil && len(got) != 0 {
			t.Errorf("slot %d is free and holds %v", n, got)
		}
	}
}

func TestTheKernelKeepsNoMoreEmptyMapsThanSpares(t *testing.T) {
	s, _ := openSlots(t, Limits{Slots: 128, Entries: 64, Spares: 4})
	defer s.Close()
	for round := range 2 {
		used := map[uint32]string{}
		for i := range uint32(40) {
			group := fmt.Sprint(i)
			used[mustAcquire(t, s, group, 1, varied(i, 3))] = group
		}
		if len(used) != 40 {
			t.Fatalf("40 policies hold %d slots", len(used))
		}
		for n, group := range used {
			if err := s.Release(n, group); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.refill(); err != nil {
			t.Fatal(err)
		}
		maps := map[ebpf.MapID]bool{}
		for n := range uint32(128) {
			id, err := s.outer.(*kernelArray).id(n)
			if err != nil {
				t.Fatal(err)
			}
			maps[id] = true
		}
		delete(maps, 0)
		if st := s.Stats(); len(maps) > 6 || st.Spare != 4 || st.Released != 0 { // one to wait, one that the rest share
			t.Fatalf("round %d: %d maps are held; %+v", round, len(maps), st)
		}
	}
}

// held are the maps that the slots hold, and how many slots hold one of their own.
func held(t *testing.T, s *Slots) (maps map[ebpf.MapID]int, own int) {
	t.Helper()
	maps = map[ebpf.MapID]int{}
	for n := range s.limits.Slots {
		id, err := s.outer.(*kernelArray).id(n)
		if err != nil {
			t.Fatal(err)
		}
		maps[id]++
	}
	delete(maps, 0)
	last, err := s.outer.(*kernelArray).id(s.scratch())
	if err != nil {
		t.Fatal(err)
	}
	for id, holders := range maps {
		if holders == 1 && id != last {
			own++
		}
	}
	return maps, own
}

func TestN03SlotsAreTheSameAfterManyRestarts(t *testing.T) {
	limits := Limits{Slots: 96, Spares: 8} // at 8 a restart all would be used up after 10
	s, root := openSlots(t, limits)
	used := map[uint32]string{}
	for i := range uint32(20) {
		group := fmt.Sprint("g", i)
		used[mustAcquire(t, s, group, 1, varied(i*10, 3))] = group
	}
	first := 0
	for restart := range 40 {
		if restart%2 == 0 { // the other ones are like a kill: nothing is finished
			if err := s.refill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		if s, err = Open(root, limits); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.Free < 40 {
			t.Fatalf("restart %d: %+v", restart, st)
		}
		for n, group := range used {
			if err := s.Adopt(n, group); err != nil {
				t.Fatalf("restart %d: %v", restart, err)
			}
		}
		if restart%5 == 4 { // a pod comes and goes before the leftovers are known
			n := mustAcquire(t, s, "passing", 1, varied(9000, 3))
			if used[n] != "" {
				t.Fatalf("restart %d: slot %d belongs to %s", restart, n, used[n])
			}
			if err := s.Release(n, "passing"); err != nil {
				t.Fatal(err)
			}
		}
		s.ReleaseUnadopted()
		if err := s.refill(); err != nil {
			t.Fatal(err)
		}
		if err := s.refill(); err != nil { // what the goroutine may just have taken
			t.Fatal(err)
		}
		maps, own := held(t, s)
		if first == 0 {
			first = len(maps)
		}
		if st := s.Stats(); len(maps) != first || own != 28 || st.Used != 20 || st.Spare != 8 || st.Left+st.Released != 0 {
			t.Fatalf("restart %d: %d maps, at first %d; %d slots have one of their own; %+v", restart, len(maps), first, own, st)
		}
	}
	for n, group := range used {
		if err := s.Release(n, group); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The agent of c41cb37 left a map that many slots share with each restart.
func TestN03SlotsThatAFormerVersionLeftAreFree(t *testing.T) {
	limits := Limits{Slots: 64, Spares: 4}
	s, root := openSlots(t, limits)
	want := varied(1, 3)
	n := mustAcquire(t, s, "a", 1, want)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := bpf.Open(outerSpec(0), root.Map(Name))
	if err != nil {
		t.Fatal(err)
	}
	for from := uint32(8); from < 60; from += 13 {
		shared, err := bpf.Create(innerSpec())
		if err != nil {
			t.Fatal(err)
		}
		for slot := from; slot < from+13 && slot < 62; slot++ {
			if err := m.Put(slot, uint32(shared.FD())); err != nil {
				t.Fatal(err)
			}
		}
		shared.Close()
	}
	scratch, err := bpf.Create(innerSpec())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Put(uint32(63), uint32(scratch.FD())), scratch.Close(), m.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(root, limits); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Adopt(10, "b"); err == nil {
		t.Error("a slot without a policy was adopted")
	}
	if err := s.Adopt(n, "a"); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(50) { // no room, if they were taken for policies
		mustAcquire(t, s, fmt.Sprint("new", i), 1, varied(i*10, 1))
	}
	if got, err := s.Dump(n); err != nil || !maps.Equal(got, want) {
		t.Errorf("the policy in force: %v, %v", got, err)
	}
	s.ReleaseUnadopted()
	if err := s.refill(); err != nil {
		t.Fatal(err)
	}
	if maps, own := held(t, s); len(maps) != own+1 {
		t.Errorf("%d maps for %d slots: more than one is shared", len(maps), own)
	}
}
