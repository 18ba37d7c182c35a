package loader

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

// realLoader loads the project's own sources over private copies of their maps.
func realLoader(t testing.TB) *Loader {
	t.Helper()
	env := testutils.Kernel(t)
	root := openRoot(t, env)
	spec := realSpec(t, both)
	delete(spec.Maps, callsMap)
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return name[0] == '.' })
	opened := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		if name == "weir_ipcache" { // limits are configuration
			m.MaxEntries = 1000
		}
		opened[name] = openMap(t, m)
	}
	l, err := New(Config{StateDir: t.TempDir(), Root: root, Sources: os.DirFS("../../../bpf"),
		Logger: slog.New(slog.DiscardHandler), Maps: opened})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func openMap(t testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	m, err := bpf.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestEveryBuiltInShapeOfTheRealSourcesLoads(t *testing.T) {
	l := realLoader(t)
	for i, shape := range BuiltinShapes() {
		p, err := l.Load(t.Context(), shape, endpoint(uint16(i+1)))
		if err != nil {
			t.Errorf("shape %s: %v", shape, err)
			continue
		}
		p.Close()
	}
	for hash, slot := range l.shapes {
		for _, pin := range bodyPins() {
			prog, err := ebpf.LoadPinnedProgram(filepath.Join(l.cfg.Root.Shape(hash), pin), nil)
			if err != nil {
				t.Fatal(err)
			}
			info, err := prog.Info()
			prog.Close()
			if err != nil {
				t.Fatal(err)
			}
			n, _ := info.VerifiedInstructions()
			t.Logf("%.8s %s: %d verified instructions, array %d", hash, pin, n, slot.loaded.record.Calls)
			if n > 50000 {
				t.Errorf("%s has %d verified instructions, at most 50000 are allowed", pin, n)
			}
		}
	}
}

func BenchmarkLoadAnEndpoint(b *testing.B) {
	l := realLoader(b)
	if err := l.Prepare(b.Context(), both); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p, err := l.Load(b.Context(), both, endpoint(1))
		if err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
}

func BenchmarkFetchHit(b *testing.B) {
	l := realLoader(b)
	cfg := configuration{both, endpoint(1)}
	for b.Loop() {
		if _, err := l.cache.fetchOrCompile(b.Context(), cfg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFetchMiss(b *testing.B) {
	l := realLoader(b)
	for b.Loop() {
		cache := l.cache
		fresh, err := newObjectCache(b.TempDir(), nil, cache.compiler, cache.logger)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := fresh.fetchOrCompile(b.Context(), configuration{both, endpoint(1)}); err != nil {
			b.Fatal(err)
		}
		fresh.close()
	}
}
