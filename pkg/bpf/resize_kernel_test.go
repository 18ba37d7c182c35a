package bpf_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

// resized opens a map of that room and tells which two it got; 0 is none.
func resized(t *testing.T, path string, room uint32, prepare func(former, m *ebpf.Map) error) (m, former *ebpf.Map) {
	t.Helper()
	spec := hashSpec()
	spec.MaxEntries = room
	m, former, err := bpf.OpenResized(spec, path, prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); former.Close() })
	return m, former
}

func numberOf(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	if m == nil {
		return 0
	}
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func pins(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestAMapOfAnotherSizeTakesThePlace(t *testing.T) {
	env := testutils.Kernel(t)
	path := openRoot(t, env).Map("weir_test")
	dir := filepath.Dir(path)
	defer os.RemoveAll(dir)
	fill := func(former, m *ebpf.Map) error {
		var v uint64
		return errors.Join(former.Lookup(uint32(7), &v), m.Put(uint32(7), v+1))
	}
	never := func(_, _ *ebpf.Map) error { t.Error("nothing changes, and yet it is prepared"); return nil }
	first, none := resized(t, path, 10, never)
	if err := first.Put(uint32(7), uint64(1)); err != nil || none != nil {
		t.Fatal(none, err)
	}
	second, former := resized(t, path, 20, fill)
	var v uint64
	if err := second.Lookup(uint32(7), &v); err != nil || v != 2 || second.MaxEntries() != 20 || numberOf(t, former) != numberOf(t, first) {
		t.Errorf("%d, %v, %s after %s", v, err, second, former)
	}
	// Whatever is asked for now, the change that is under way comes first.
	for _, room := range []uint32{20, 30, 10} {
		m, f := resized(t, path, room, never)
		if numberOf(t, m) != numberOf(t, second) || numberOf(t, f) != numberOf(t, first) {
			t.Errorf("room for %d, while another change is under way: %s after %s", room, m, f)
		}
	}
	if err := bpf.Drop(former, path); err != nil {
		t.Fatal(err)
	}
	if got := pins(t, dir); !slices.Equal(got, []string{"weir_test"}) {
		t.Errorf("left: %v", got)
	}
	third, former := resized(t, path, 10, fill)
	if numberOf(t, former) != numberOf(t, second) || third.MaxEntries() != 10 {
		t.Errorf("smaller again: %s after %s", third, former)
	}
}

func TestAChangeOfSizeThatIsRefusedOrInterrupted(t *testing.T) {
	env := testutils.Kernel(t)
	path := openRoot(t, env).Map("weir_test")
	dir := filepath.Dir(path)
	defer os.RemoveAll(dir)
	fine := func(_, _ *ebpf.Map) error { return nil }
	first, _ := resized(t, path, 10, fine)
	spec := hashSpec()
	spec.MaxEntries = 5
	_, _, err := bpf.OpenResized(spec, path, func(_, _ *ebpf.Map) error { return errors.New("give it more") })
	if err == nil || !strings.Contains(err.Error(), "weir_test room for 5: give it more") {
		t.Errorf("refused: %v", err)
	}
	if got := pins(t, dir); !slices.Equal(got, []string{"weir_test"}) {
		t.Errorf("a refusal leaves %v", got)
	}
	spec.ValueSize = 16
	var layout *bpf.LayoutError
	if _, _, err := bpf.OpenResized(spec, path, fine); !errors.As(err, &layout) {
		t.Errorf("another kind of map: %v", err)
	}

	// An agent died while the new map did not have the place yet. The next one still
	// wants it, and then one does not.
	for _, changes := range []bool{true, false} {
		spec := hashSpec()
		spec.MaxEntries = 30
		half, err := bpf.Create(spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(half.Pin(path+"_new"), os.Link(path, path+"_former"), half.Close()); err != nil {
			t.Fatal(err)
		}
		m, former := resized(t, path, 20, fine)
		if m.MaxEntries() != 20 || changes != (former != nil) || changes && numberOf(t, former) != numberOf(t, first) {
			t.Errorf("after an interruption: %s after %s", m, former)
		}
		if changes {
			if err := bpf.Drop(former, path); err != nil {
				t.Fatal(err)
			}
		}
		if got := pins(t, dir); !slices.Equal(got, []string{"weir_test"}) {
			t.Errorf("after an interruption there is %v", got)
		}
	}
	// A person removed the pin to start with an empty map.
	_, former := resized(t, path, 40, fine)
	if err := os.Remove(path); err != nil || former == nil {
		t.Fatal(err)
	}
	if m, former := resized(t, path, 20, fine); former != nil || numberOf(t, m) == 0 {
		t.Errorf("without a pin: %s after %s", m, former)
	}
}
