package loader

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

// life is one life of an agent: a loader over given state, pins and maps.
type life struct {
	*Loader
	marker *ebpf.Map
}

func newMarker(t testing.TB, value uint32) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weir_marker", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(uint32(0), value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func newLife(t testing.TB, root bpf.Root, state string, marker *ebpf.Map, sources fs.FS) life {
	t.Helper()
	maps := map[string]*ebpf.Map{}
	if marker != nil {
		maps["weir_marker"] = marker
	}
	l, err := New(Config{StateDir: state, Root: root, Sources: sources, Logger: slog.New(slog.DiscardHandler), Maps: maps})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return life{l, marker}
}

// openRoot makes the pin root, which is emptied at the end of the test.
func openRoot(t testing.TB, env *testutils.Env) bpf.Root {
	t.Helper()
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root.Shapes()); err != nil {
			t.Error(err)
		}
	})
	return root
}

// run sends one frame through a program and returns its verdict.
func run(t testing.TB, p Program) uint32 {
	t.Helper()
	ret, err := p.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	return ret
}

func load(t testing.TB, l life, id uint16) Programs {
	t.Helper()
	p, err := l.Load(t.Context(), v4, endpoint(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func pinnedShapes(t testing.TB, root bpf.Root) []string {
	t.Helper()
	entries, err := os.ReadDir(root.Shapes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEndpointsShareABodyAndKeepTheirOwnConstants(t *testing.T) {
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	l := newLife(t, root, t.TempDir(), newMarker(t, 100), small())
	one, two := load(t, l, 1), load(t, l, 2)
	for _, c := range []struct {
		p    Program
		want uint32
	}{{one.From, 101}, {two.From, 102}, {one.To, 1101}, {two.To, 1102}} {
		if got := run(t, c.p); got != c.want {
			t.Errorf("%s returned %d, want %d", c.p.Name(), got, c.want)
		}
		if c.p.ID() == 0 || c.p.FD() <= 0 {
			t.Errorf("%s has id %d, descriptor %d", c.p.Name(), c.p.ID(), c.p.FD())
		}
	}
	names := pinnedShapes(t, root)
	if len(names) != 1 {
		t.Fatalf("pinned shapes: %v", names)
	}
	for _, pin := range []string{"calls", "from", "to"} {
		if _, err := os.Stat(filepath.Join(root.Shape(names[0]), pin)); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(one.Close(), one.Close()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

func TestPinnedBodiesAreReusedAfterARestartOnlyIfTheRecordFits(t *testing.T) {
	env := testutils.Kernel(t)
	for _, c := range []struct {
		name   string
		change func(state string, root bpf.Root, hash string) error
		reused bool
	}{
		{"nothing changed", func(string, bpf.Root, string) error { return nil }, true},
		{"the record is gone", func(s string, _ bpf.Root, h string) error {
			return os.Remove(filepath.Join(s, "shapes", h, "record.json"))
		}, false},
		{"the record is damaged", func(s string, _ bpf.Root, h string) error {
			return os.WriteFile(filepath.Join(s, "shapes", h, "record.json"), []byte("{"), 0o600)
		}, false},
		{"another body is in a slot", func(_ string, r bpf.Root, h string) error { return swapSlots(r.Shape(h)) }, false},
		{"a pin is gone", func(_ string, r bpf.Root, h string) error { return os.Remove(filepath.Join(r.Shape(h), "to")) }, false},
	} {
		root, state, marker := bpf.Root{Path: filepath.Join(env.BPFRoot, strings.ReplaceAll(c.name, " ", "-"))}, t.TempDir(), newMarker(t, 100)
		first := newLife(t, root, state, marker, small())
		p := load(t, first, 1)
		hash := pinnedShapes(t, root)[0]
		before := first.shapes[hash].loaded.record
		if err := errors.Join(p.Close(), first.Close(), c.change(state, root, hash)); err != nil {
			t.Fatal(err)
		}
		second := newLife(t, root, state, marker, small())
		p = load(t, second, 1)
		if got := run(t, p.From); got != 101 {
			t.Errorf("%s: verdict %d", c.name, got)
		}
		if after := second.shapes[hash].loaded.record; (after.Calls == before.Calls) != c.reused {
			t.Errorf("%s: array %d, then %d", c.name, before.Calls, after.Calls)
		}
		if err := errors.Join(p.Close(), second.Close(), os.RemoveAll(root.Path)); err != nil {
			t.Error(err)
		}
	}
}

func swapSlots(dir string) error {
	calls, err := ebpf.LoadPinnedMap(filepath.Join(dir, "calls"), nil)
	if err != nil {
		return err
	}
	defer calls.Close()
	p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, "to"), nil)
	if err != nil {
		return err
	}
	defer p.Close()
	return calls.Put(uint32(0), p)
}

func TestAnOldArrayServesItsProgramsUntilTheLastOneIsGone(t *testing.T) {
	env := testutils.Kernel(t)
	root, state := openRoot(t, env), t.TempDir()
	first := newLife(t, root, state, newMarker(t, 100), small())
	old, other := load(t, first, 1), load(t, first, 2)
	if err := first.Close(); err != nil { // the agent ends, programs stay attached
		t.Fatal(err)
	}
	if got := run(t, old.From); got != 101 {
		t.Fatalf("without the agent: %d, the array was emptied", got)
	}

	second := newLife(t, root, state, newMarker(t, 200), small()) // other maps: the bodies are no longer right
	fresh := load(t, second, 1)
	if a, b := run(t, old.From), run(t, fresh.From); a != 101 || b != 201 {
		t.Errorf("old program %d, new program %d; want 101 and 201", a, b)
	}
	if n, err := second.ReleaseRetired(t.Context()); n != 0 || err != nil {
		t.Fatalf("released %d, %v while two programs use the array", n, err)
	}
	if unused, err := Unused(t.Context(), first.marker); unused || err != nil {
		t.Errorf("the map of the old bodies is unused: %v, %v", unused, err)
	}
	if err := old.Close(); err != nil { // endpoint 1 was replaced
		t.Fatal(err)
	}
	if n, err := second.ReleaseRetired(t.Context()); n != 0 || err != nil {
		t.Fatalf("released %d, %v while one program uses the array", n, err)
	}
	if got := run(t, other.From); got != 102 {
		t.Errorf("endpoint 2, not replaced yet: %d", got)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	released := 0
	for range 1000 { // the kernel drops a program's references after its descriptor is closed
		n, err := second.ReleaseRetired(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if released += n; released > 0 {
			break
		}
	}
	if names := pinnedShapes(t, root); released != 1 || len(names) != 1 || strings.Contains(names[0], "-") {
		t.Errorf("released %d, pinned now: %v", released, names)
	}
	unused := false
	for i := 0; i < 1000 && !unused; i++ { // nor are they gone at once
		var err error
		if unused, err = Unused(t.Context(), first.marker); err != nil {
			t.Fatal(err)
		}
	}
	if used, err := Unused(t.Context(), second.marker); !unused || used || err != nil {
		t.Errorf("unused: %v, of the bodies in use %v, %v", unused, used, err)
	}
	if got := run(t, fresh.To); got != 1201 {
		t.Errorf("the array in use: %d", got)
	}
}

func TestAShapeOfFormerSourcesIsReleasedWithItsRecord(t *testing.T) {
	env := testutils.Kernel(t)
	root, state, marker := openRoot(t, env), t.TempDir(), newMarker(t, 100)
	first := newLife(t, root, state, marker, small())
	if err := first.Prepare(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	former := pinnedShapes(t, root)[0]
	if err := errors.Join(first.Close(), root.MkdirAll(root.Shape(former)+newSuffix)); err != nil { // and a load that was killed
		t.Fatal(err)
	}
	second := newLife(t, root, state, marker, small())
	if err := second.Prepare(t.Context(), v4); err != nil {
		t.Fatal(err)
	}
	if n, err := second.ReleaseRetired(t.Context()); n != 2 || err != nil {
		t.Errorf("released %d, %v", n, err)
	}
	if _, err := os.Stat(filepath.Join(state, "shapes", former)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record of the former shape: %v", err)
	}
	if n, err := second.ReleaseRetired(t.Context()); n != 0 || err != nil {
		t.Errorf("nothing to release: %d, %v", n, err)
	}
}

func TestManyEndpointsAtOnceLoadTheBodyOnce(t *testing.T) {
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	l := newLife(t, root, t.TempDir(), newMarker(t, 0), small())
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			p, err := l.Load(t.Context(), v4, endpoint(uint16(i+1)))
			if err != nil {
				t.Error(err)
				return
			}
			if ret, err := p.From.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil || ret != uint32(i+1) {
				t.Errorf("endpoint %d: %d, %v", i+1, ret, err)
			}
			p.Close()
		})
	}
	wg.Wait()
	if names := pinnedShapes(t, root); len(names) != 1 {
		t.Errorf("pinned: %v", names)
	}
}

func TestARefusedBodyGivesOneLineAndAFile(t *testing.T) {
	env := testutils.Kernel(t)
	root, state := openRoot(t, env), t.TempDir()
	l := newLife(t, root, state, newMarker(t, 0), os.DirFS("testdata/refused"))
	_, err := l.Load(t.Context(), v4, endpoint(9))
	var refused *RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, unix.EACCES) {
		t.Fatalf("got %v", err)
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), refused.LogFile) ||
		!strings.Contains(refused.Reason, "map_value_or_null") || !strings.Contains(err.Error(), "endpoint 9") {
		t.Errorf("message: %q", err)
	}
	log, rerr := os.ReadFile(refused.LogFile)
	if rerr != nil || !strings.Contains(string(log), "bpf_lxc.c:") && !strings.Contains(string(log), "return (int)") {
		t.Errorf("the log (%v) has no source lines:\n%.2000s", rerr, log)
	}
	if names := pinnedShapes(t, root); len(names) != 0 {
		t.Errorf("half-made pins: %v", names)
	}
}

func TestAMapThatWasNotOpenedIsNamed(t *testing.T) {
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	l := newLife(t, root, t.TempDir(), nil, small())
	if err := l.Prepare(t.Context(), v4); err == nil || !strings.Contains(err.Error(), "weir_marker") {
		t.Errorf("got %v", err)
	}
}

func TestACancelledLoadLoadsNothing(t *testing.T) {
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	l := newLife(t, root, t.TempDir(), newMarker(t, 0), small())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Load(ctx, v4, endpoint(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if names := pinnedShapes(t, root); len(names) != 0 {
		t.Errorf("pinned: %v", names)
	}
}
