package pinned

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/pkg/testutils"
)

// madeUp is a layout that no version ever had: values are shorter by some bytes and keys
// longer by others than now.
type madeUp struct{ less, more uint32 }

func layoutsBefore() map[string]madeUp {
	return map[string]madeUp{
		"weir_lxc": {8, 4}, "weir_epconfig": {8, 0}, "weir_ipcache": {4, 4}, "weir_ct4": {8, 4}, "weir_ct6": {16, 8},
		"weir_frag": {4, 4}, "weir_metrics": {8, 0}, "weir_policy": {8, 0},
	}
}

// known are the made-up layouts as the maps' conversions.
func known(specs map[string]*ebpf.MapSpec) map[string][]bpf.Layout {
	all := map[string][]bpf.Layout{}
	for name, l := range layoutsBefore() {
		spec := specs[name]
		all[name] = []bpf.Layout{{KeySize: spec.KeySize + l.more, ValueSize: spec.ValueSize - l.less, Convert: func(k, v []byte) ([]byte, []byte) {
			return bytes.Clone(k[:spec.KeySize]), append(bytes.Clone(v), make([]byte, l.less)...)
		}}}
	}
	return all
}

func specOf(m *ebpf.Map) *ebpf.MapSpec {
	return &ebpf.MapSpec{Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: m.MaxEntries(), Flags: m.Flags()}
}

// back copies a map into one of the made-up layout.
func (l madeUp) back(t *testing.T, m *ebpf.Map) *ebpf.Map {
	t.Helper()
	spec := specOf(m)
	spec.Name = "weir_before"
	spec.KeySize, spec.ValueSize = spec.KeySize+l.more, spec.ValueSize-l.less
	old, err := bpf.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	now := bpf.Layout{Convert: func(k, v []byte) ([]byte, []byte) {
		return append(bytes.Clone(k), make([]byte, l.more)...), bytes.Clone(v[:uint32(len(v))-l.less])
	}}
	if _, err := now.Fill(m, old); err != nil {
		t.Fatal(err)
	}
	return old
}

// pinBefore puts maps of the made-up layouts in the place of all that are pinned; an
// array of policies with such maps in it.
func pinBefore(t *testing.T, root bpf.Root, m *Maps) map[string]*ebpf.Map {
	t.Helper()
	out := map[string]*ebpf.Map{}
	for name, l := range layoutsBefore() {
		now := m.Named()[name]
		if name != "weir_policy" {
			out[name] = l.back(t, now)
		} else {
			out[name] = policiesBefore(t, now, l)
		}
		pin := root.Map(name)
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		if err := out[name].Pin(pin); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func policiesBefore(t *testing.T, now *ebpf.Map, l madeUp) (outer *ebpf.Map) {
	t.Helper()
	var slot uint32
	var id ebpf.MapID
	for it := now.Iterate(); it.Next(&slot, &id); {
		if id == 0 {
			continue
		}
		inner, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		old := l.back(t, inner)
		if outer == nil {
			spec := specOf(now)
			spec.Name, spec.InnerMap = "weir_before", specOf(old)
			if outer, err = bpf.Create(spec); err != nil {
				t.Fatal(err)
			}
		}
		if err := outer.Put(slot, uint32(old.FD())); err != nil {
			t.Fatal(err)
		}
		old.Close()
		inner.Close()
	}
	return outer
}

// count is the number of entries of a map, or of filled slots.
func count(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	key, value, values := make([]byte, m.KeySize()), make([]byte, m.ValueSize()), [][]byte(nil)
	it := m.Iterate()
	for {
		var more bool
		if m.Type() == ebpf.PerCPUArray {
			more = it.Next(&key, &values)
			value = bytes.Join(values, nil)
		} else {
			more = it.Next(&key, &value)
		}
		if !more {
			break
		}
		if strings.Trim(string(value), "\x00") != "" {
			n++
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

var podAddr = netip.MustParseAddr("10.1.0.7")

// inUse opens maps and puts something into each.
func inUse(t *testing.T, root bpf.Root, sizes Sizes) (m *Maps, slot, revision uint32) {
	t.Helper()
	m, err := Open(root, sizes)
	if err != nil {
		t.Fatal(err)
	}
	lines := []policymap.Line{{Key: policymap.Key{Identity: 4711, Protocol: 6, Port: 80, PortBits: 16}, Entry: policymap.Entry{Order: 9, Rule: 3}}}
	if slot, err = m.Slots.Acquire("g", 1, lines); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		revision = m.Config.NextRevision()
	}
	if err := m.Config.SetPolicy(7, slot, revision); err != nil {
		t.Fatal(err)
	}
	if err := m.LXC.Put(podAddr, lxcmap.Info{IfIndex: 12, Identity: 4711, ID: 7}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"weir_ct4", "weir_ct6", "weir_frag", "weir_ipcache"} {
		em := m.Named()[name]
		for i := range 20 {
			key, value := bytes.Repeat([]byte{byte(i + 1)}, int(em.KeySize())), bytes.Repeat([]byte{byte(i + 1)}, int(em.ValueSize()))
			if name == "weir_ipcache" {
				copy(key, []byte{64, 0, 0, 0})
			}
			if err := em.Put(key, value); err != nil {
				t.Fatal(name, err)
			}
		}
	}
	cpus := make([][]byte, ebpf.MustPossibleCPU())
	for i := range cpus {
		cpus[i] = bytes.Repeat([]byte{1}, 16)
	}
	if err := m.Metrics.Map().Put(uint32(3), cpus); err != nil {
		t.Fatal(err)
	}
	return m, slot, revision
}

func TestN26MapsOfAFormerLayoutAreConverted(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { os.RemoveAll(filepath.Join(env.BPFRoot, "maps")) })
	sizes := Sizes{IPCacheEntries: 64, CTEntries: 256, EventBytes: 1 << 16, Policies: policymap.Limits{Slots: 32, Spares: 2}}
	m, slot, revision := inUse(t, root, sizes)
	specs := map[string]*ebpf.MapSpec{}
	for name, em := range m.Named() {
		specs[name] = specOf(em)
	}
	specs["weir_policy"] = &ebpf.MapSpec{KeySize: 12, ValueSize: 24}
	before := pinBefore(t, root, m)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for name, em := range before {
		counts[name] = count(t, em)
	}

	m, err := open(root, sizes, known(specs))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Replaced) != len(before) {
		t.Errorf("replaced: %+v, want %d maps", m.Replaced, len(before))
	}
	for _, r := range m.Replaced {
		if r.Aside != "" || r.Entries == 0 {
			t.Errorf("%+v, want it converted", r)
		}
	}
	for _, name := range []string{"weir_lxc", "weir_ipcache", "weir_ct4", "weir_ct6", "weir_frag", "weir_metrics", "weir_epconfig"} {
		if got := count(t, m.Named()[name]); got != counts[name] {
			t.Errorf("%s has %d entries, before %d", name, got, counts[name])
		}
	}
	if i, found, err := m.LXC.Get(podAddr); err != nil || !found || i.IfIndex != 12 || i.Identity != 4711 || i.ID != 7 {
		t.Errorf("the pod's address: %+v, %v, %v", i, found, err)
	}
	if s, r, err := m.Config.Policy(7); err != nil || s != slot || r != revision {
		t.Errorf("slot %d under revision %d, %v, want %d and %d", s, r, err, slot, revision)
	}
	if got, err := m.Slots.Dump(slot); err != nil || len(got) != 1 {
		t.Errorf("the policy: %v, %v", got, err)
	}
	if err := m.Slots.Adopt(slot, "g"); err != nil {
		t.Error(err)
	}
	for name, em := range before { // programs that know them go on with them
		if got := count(t, em); got != counts[name] {
			t.Errorf("the former %s has %d entries, before %d", name, got, counts[name])
		}
		em.Close()
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := open(root, sizes, known(specs))
	if err != nil || len(again.Replaced) != 0 {
		t.Fatalf("the next start replaces %+v, %v", again.Replaced, err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestN26MapsOfAnUnknownLayoutAreSetAside(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { os.RemoveAll(filepath.Join(env.BPFRoot, "maps")) })
	sizes := Sizes{IPCacheEntries: 64, CTEntries: 256, EventBytes: 1 << 16, Policies: policymap.Limits{Slots: 32, Spares: 2}}
	m, slot, _ := inUse(t, root, sizes)
	before := pinBefore(t, root, m)
	// A ring is of no size that could differ: something else is pinned there.
	if err := os.Remove(root.Map("weir_events")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(root.Map("weir_ct4"), root.Map("weir_events")); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for _, em := range before {
		defer em.Close()
	}
	m, err := Open(root, sizes)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	aside := map[string]bool{}
	for _, r := range m.Replaced {
		if _, err := os.Stat(r.Aside); err != nil || r.Entries != 0 {
			t.Errorf("%+v: %v", r, err)
		}
		aside[filepath.Base(r.Path)] = true
	}
	for _, name := range []string{"weir_lxc", "weir_epconfig", "weir_policy", "weir_ipcache", "weir_ct4", "weir_ct6", "weir_frag", "weir_metrics", "weir_events"} {
		if !aside[name] {
			t.Errorf("%s was not set aside: %v", name, fmt.Sprint(m.Replaced))
		}
	}
	if err := m.Slots.Adopt(slot, "g"); err == nil {
		t.Error("a policy that could not be read was adopted")
	}
	if n := count(t, m.LXC.Map()); n != 0 {
		t.Errorf("%d addresses of an unknown layout are in use", n)
	}
}

// Flows outlive the words: no revision may come twice.
func TestN26RevisionsGoOnWhereTheWordsWereLost(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { os.RemoveAll(filepath.Join(env.BPFRoot, "maps")) })
	sizes := Sizes{IPCacheEntries: 64, CTEntries: 256, EventBytes: 1 << 16, Policies: policymap.Limits{Slots: 32, Spares: 2}}
	m, _, _ := inUse(t, root, sizes) // the flows have made-up revisions, the largest 0x14141414
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(root.Map("weir_epconfig")); err != nil {
		t.Fatal(err)
	}
	m, err := Open(root, sizes)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if r := m.Config.NextRevision(); r <= 0x14141414 {
		t.Errorf("revision %#x may be that of a flow", r)
	}
}
