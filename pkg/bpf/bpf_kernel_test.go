package bpf_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func hashSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "weir_test", Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 10000, Flags: 1}
}

func TestAPinnedMapIsFoundAgainWithItsContents(t *testing.T) {
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	path := root.Map("weir_test")
	if _, err := bpf.Open(hashSpec(), path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("nothing is pinned, got %v", err)
	}
	first, err := bpf.OpenOrCreate(hashSpec(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Unpin()
	if err := first.Put(uint32(7), uint64(8)); err != nil {
		t.Fatal(err)
	}
	first.Close()
	again, err := bpf.OpenOrCreate(hashSpec(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	defer again.Close()
	var v uint64
	if err := again.Lookup(uint32(7), &v); err != nil || v != 8 {
		t.Fatalf("the entry is gone: %d, %v", v, err)
	}
}

func TestAMapOfAnotherLayoutIsRefusedByWhatDiffers(t *testing.T) {
	env := testutils.Kernel(t)
	path := openRoot(t, env).Map("weir_test")
	m, err := bpf.OpenOrCreate(hashSpec(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	defer m.Unpin()
	for what, change := range map[string]func(*ebpf.MapSpec){
		"type is Hash, want LRUHash":     func(s *ebpf.MapSpec) { s.Type = ebpf.LRUHash },
		"key size is 4, want 12":         func(s *ebpf.MapSpec) { s.KeySize = 12 },
		"value size is 8, want 16":       func(s *ebpf.MapSpec) { s.ValueSize = 16 },
		"room is 10000, want 20000":      func(s *ebpf.MapSpec) { s.MaxEntries = 20000 },
		"flags is 1, want 0":             func(s *ebpf.MapSpec) { s.Flags = 0 },
		"remove the pin":                 func(s *ebpf.MapSpec) { s.Flags = 0 },
		path + " is of another layout: ": func(s *ebpf.MapSpec) { s.KeySize = 8 },
	} {
		spec := hashSpec()
		change(spec)
		_, err := bpf.OpenOrCreate(spec, path)
		var layout *bpf.LayoutError
		if !errors.As(err, &layout) || !strings.Contains(err.Error(), what) {
			t.Errorf("want %q, got %v", what, err)
		}
	}
	any := hashSpec()
	any.MaxEntries = 0 // whatever room it has
	same, err := bpf.Open(any, path)
	if err != nil {
		t.Fatal(err)
	}
	same.Close()
}

func TestTwoCreatorsGetOneMap(t *testing.T) {
	env := testutils.Kernel(t)
	path := openRoot(t, env).Map("weir_test")
	var wg sync.WaitGroup
	ids := make([]ebpf.MapID, 8)
	for i := range ids {
		wg.Go(func() {
			m, err := bpf.OpenOrCreate(hashSpec(), path)
			if err != nil {
				t.Error(err)
				return
			}
			defer m.Close()
			info, err := m.Info()
			if err != nil {
				t.Error(err)
				return
			}
			ids[i], _ = info.ID()
		})
	}
	wg.Wait()
	defer os.Remove(path)
	for _, id := range ids {
		if id == 0 || id != ids[0] {
			t.Fatalf("different maps: %v", ids)
		}
	}
}

func TestBatchesWriteReadAndDeletePastMissingKeys(t *testing.T) {
	testutils.Kernel(t)
	for _, spec := range []*ebpf.MapSpec{
		hashSpec(),
		{Name: "lpm", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 10000, Flags: 1},
	} {
		t.Run(spec.Type.String(), func(t *testing.T) {
			m, err := bpf.Create(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if spec.Type == ebpf.Hash {
				batches(t, m, func(i int) uint32 { return uint32(i) })
			} else {
				batches(t, m, func(i int) [8]byte { return [8]byte{32, 0, 0, 0, byte(i), byte(i >> 8)} })
			}
		})
	}
}

func batches[K comparable](t *testing.T, m *ebpf.Map, key func(int) K) {
	const n = 9000
	keys, values := make([]K, n), make([]uint64, n)
	for i := range keys {
		keys[i], values[i] = key(i), uint64(i)
	}
	if err := bpf.Update(m, keys, values); err != nil {
		t.Fatal(err)
	}
	sum := func() (count int, sum uint64) {
		if err := bpf.Each(m, func(_ K, v uint64) { count++; sum += v }); err != nil {
			t.Fatal(err)
		}
		return count, sum
	}
	if c, s := sum(); c != n || s != n*(n-1)/2 {
		t.Fatalf("read %d entries with sum %d", c, s)
	}
	// Every third key is missing, first and last among them.
	var odd []K
	for i := 0; i < n; i += 3 {
		odd = append(odd, keys[i])
	}
	odd = append(odd, keys[n-1])
	if err := bpf.Delete(m, odd); err != nil {
		t.Fatal(err)
	}
	if err := bpf.Delete(m, keys[:n-10]); err != nil {
		t.Fatalf("delete past missing keys: %v", err)
	}
	if c, _ := sum(); c != 6 {
		t.Fatalf("%d entries are left, want 6", c)
	}
	if err := bpf.Update(m, []K{}, []uint64{}); err != nil {
		t.Fatalf("nothing to write: %v", err)
	}
}

func TestAFullMapFailsABatch(t *testing.T) {
	testutils.Kernel(t)
	spec := hashSpec()
	spec.MaxEntries = 4
	m, err := bpf.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := bpf.Update(m, []uint32{1, 2, 3, 4, 5}, make([]uint64, 5)); err == nil {
		t.Fatal("five entries went into a map for four")
	}
}

func TestRootStaysOnTheBPFFS(t *testing.T) {
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	if err := root.MkdirAll(root.Shape("12")); err != nil {
		t.Fatal(err)
	}
	if err := root.MkdirAll(filepath.Join(root.Path, "../out")); err == nil {
		t.Error("a directory outside the root was made")
	}
	if err := root.MkdirAll(filepath.Join(root.Path, "a.b")); err == nil || !strings.Contains(err.Error(), "dot") {
		t.Errorf("a name with a dot: %v", err)
	}
	elsewhere := filepath.Join(t.TempDir(), "weir")
	if _, err := bpf.OpenRoot(elsewhere); err == nil || !strings.Contains(err.Error(), "mount -t bpf") {
		t.Errorf("a root on another file system: %v", err)
	}
	if _, err := os.Stat(elsewhere); !os.IsNotExist(err) {
		t.Error("the refused root was made all the same")
	}
	if _, err := bpf.OpenRoot("weir"); err == nil {
		t.Error("a relative root was taken")
	}
}

func TestAFailedCreateKeepsItsReason(t *testing.T) {
	testutils.Kernel(t)
	bad := &ebpf.MapSpec{Name: "bad", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 1} // flag missing
	_, err := bpf.Create(bad)
	var missing *bpf.MissingFeatureError
	if err == nil || errors.As(err, &missing) {
		t.Errorf("the kernel has LPM tries; the fault is the flags: %v", err)
	}
}

func TestProcessPreparation(t *testing.T) {
	testutils.Kernel(t)
	for range 2 {
		if err := errors.Join(bpf.GrowFDTable(), bpf.RemoveMemlock()); err != nil {
			t.Fatal(err)
		}
	}
	id, err := bpf.BootID()
	if err != nil || len(id) != 36 {
		t.Errorf("boot id %q, %v", id, err)
	}
	a, b := bpf.BootTime(), bpf.BootTime()
	if a <= 0 || b < a {
		t.Errorf("the time since boot went from %v to %v", a, b)
	}
}

func openRoot(t *testing.T, env *testutils.Env) bpf.Root {
	t.Helper()
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	return root
}
