package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// What measureDelta changes, and how often.
const (
	deltaBase   = 10_000 // lines that the endpoint has
	deltaLines  = 1_000  // lines that it gets
	deltaRounds = 100
)

// policyLines makes lines of a policy, one for each identity from id on.
func policyLines(id, n uint32) []policymap.Line {
	out := make([]policymap.Line, n)
	for i, at := range rand.Perm(int(n)) { // as a map state gives them
		out[at] = policymap.Line{
			Key:   policymap.Key{Identity: id + uint32(i), Protocol: 6, Port: 80, PortBits: 16},
			Entry: policymap.Entry{Order: 1 << 40, Rule: 1},
		}
	}
	return out
}

// rawKeys is the same in the layout of the kernel.
func rawKeys(id, n uint32) (keys [][12]byte, values [][24]byte) {
	for i := range n {
		var k [12]byte
		binary.NativeEndian.PutUint32(k[0:], 64)
		binary.NativeEndian.PutUint32(k[4:], id+i)
		k[9], k[11] = 6, 80
		keys = append(keys, k)
	}
	return keys, make([][24]byte, n)
}

// rawTrie is a trie of the kind that a slot of the policy maps holds, with as
// many lines.
func rawTrie(of *ebpf.Map, slot uint32) (m *ebpf.Map, err error) {
	var id ebpf.MapID
	if err := of.Lookup(slot, &id); err != nil {
		return nil, err
	}
	model, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, err
	}
	defer model.Close()
	m, err = ebpf.NewMap(&ebpf.MapSpec{Type: model.Type(), KeySize: model.KeySize(), ValueSize: model.ValueSize(), MaxEntries: model.MaxEntries(), Flags: model.Flags()})
	if err != nil {
		return nil, err
	}
	if keys, values := rawKeys(1000, deltaBase); err == nil {
		_, err = m.BatchUpdate(keys, values, nil)
	}
	return m, err
}

// measureDelta times a policy that grows by some lines against one batch of as
// many lines into a bare trie, in turn.
func measureDelta(r *report) (err error) {
	root, err := bpf.OpenRoot(fmt.Sprintf("/sys/fs/bpf/weir-bench-delta-%d", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root.Path)) }()
	slots, err := policymap.Open(root, policymap.Limits{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, slots.Close()) }()
	base, want := policyLines(1000, deltaBase), policyLines(1000, deltaBase+deltaLines)
	d := &delta{slots: slots}
	if d.slot, err = slots.Acquire("bench", 1, base); err != nil {
		return err
	}
	raw, err := rawTrie(slots.Map(), d.slot)
	if err != nil {
		return fmt.Errorf("making a bare trie: %w", err)
	}
	defer raw.Close()
	keys, values := rawKeys(1000+deltaBase, deltaLines)
	var product, bare []float64
	steps := []func() error{
		func() error {
			ms, err := timed(func() error { _, err := raw.BatchUpdate(keys, values, nil); return err })
			if err != nil {
				return err
			}
			bare = append(bare, ms)
			_, err = raw.BatchDelete(keys, nil)
			return err
		},
		func() error {
			ms, err := d.update(want)
			if err != nil {
				return err
			}
			product = append(product, ms)
			_, err = d.update(base)
			return err
		},
	}
	for range deltaRounds {
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		slices.Reverse(steps)
	}
	reportDelta(product, bare, d.moves, r)
	return nil
}

// delta is the endpoint whose policy changes.
type delta struct {
	slots   *policymap.Slots
	slot    uint32
	version uint64
	moves   int // changes that went to another slot
}

// update times a change as the endpoint makes it, without its switch to the
// other slot, if it is one.
func (d *delta) update(want []policymap.Line) (ms float64, err error) {
	d.version++
	old := d.slot
	ms, err = timed(func() (err error) {
		d.slot, err = d.slots.Update(old, "bench", d.version+1, want)
		return err
	})
	if err != nil || d.slot == old {
		return ms, err
	}
	d.moves++
	return ms, d.slots.Release(old, "bench")
}

func reportDelta(product, bare []float64, moves int, r *report) {
	ratio := ratios(product, bare)
	what := fmt.Sprintf("%d lines more on %d", deltaLines, deltaBase)
	r.add(line{What: what + ", bare trie p50", Value: quantile(bare, 0.5), Unit: "ms", Note: spread(bare)})
	r.add(line{What: what, Value: quantile(ratio, 0.5), Unit: "x", Baseline: "one batch into a bare trie", Aim: 3,
		Note: fmt.Sprintf("%d of %d changes took another slot; %s", moves, 2*len(product), spread(ratio))})
}
