package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

var (
	v4   = Shape{IPv4: true}
	both = Shape{IPv4: true, IPv6: true}
)

// script writes an executable shell script in the place of clang.
func script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clang-fake")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func small() fs.FS { return os.DirFS("testdata/small") }

func testCache(t testing.TB, dir, clang string, objects fs.FS, log *bytes.Buffer) *objectCache {
	t.Helper()
	if log == nil {
		log = &bytes.Buffer{}
	}
	logger := slog.New(slog.NewTextHandler(log, nil))
	c, err := newObjectCache(dir, objects, &compiler{path: clang, source: "bpf_lxc.c", sources: small(), logger: logger}, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func endpoint(id uint16) Endpoint {
	return Endpoint{
		ID: id, Identity: 70000 + uint32(id), IfIndex: 12,
		MAC: types.MAC{2, 1, 1, 1, 1, 1}, NodeMAC: types.MAC{2, 1, 1, 1, 1, 2},
		IPv4: netip.MustParseAddr("10.1.0.7"), IPv6: netip.MustParseAddr("fd00::7"),
	}
}

func TestTwoHundredCallersOfTwoShapesCauseTwoCompiles(t *testing.T) {
	testutils.Needs(t, testutils.Tool("clang-19"))
	count := filepath.Join(t.TempDir(), "count")
	log := &bytes.Buffer{}
	cache := testCache(t, t.TempDir(), script(t, fmt.Sprintf("echo x >> %s\nexec clang-19 \"$@\"\n", count)), nil, log)
	var wg sync.WaitGroup
	errs := make(chan error, 200)
	for i := range 200 {
		wg.Go(func() {
			cfg := configuration{both, endpoint(uint16(i + 1))}
			if i%2 == 1 {
				cfg.Shape = v4
			}
			o, err := cache.fetchOrCompile(t.Context(), cfg)
			if err == nil {
				err = substitute(o.entries.plain, cfg.Endpoint) // would race if the copy were shared
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	data, _ := os.ReadFile(count)
	if n := strings.Count(string(data), "x"); n != 2 {
		t.Errorf("clang ran %d times for two shapes", n)
	}
	if n := strings.Count(log.String(), "Compiled new BPF template"); n != 2 || !strings.Contains(log.String(), "duration=") || !strings.Contains(log.String(), "path=") {
		t.Errorf("%d log lines of a compile: %s", n, log)
	}
}

func TestTheCacheOutlivesALoaderAndNeedsNoClangThen(t *testing.T) {
	testutils.Needs(t, testutils.Tool("clang-19"))
	dir := t.TempDir()
	first := testCache(t, dir, "", nil, nil)
	if _, err := first.fetchOrCompile(t.Context(), configuration{Shape: v4}); err != nil {
		t.Fatal(err)
	}
	second := testCache(t, dir, "/nowhere/clang", nil, nil)
	if _, err := second.fetchOrCompile(t.Context(), configuration{Shape: v4}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.fetchOrCompile(t.Context(), configuration{Shape: both}); !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("another shape was found without a compiler: %v", err)
	}
}

func TestADamagedObjectIsNoticedAndCompiledAgain(t *testing.T) {
	testutils.Needs(t, testutils.Tool("clang-19"))
	for name, damage := range map[string]func(object string) error{
		"one byte":       func(o string) error { return flip(o) },
		"empty":          func(o string) error { return os.Truncate(o, 0) },
		"digest is gone": func(o string) error { return os.Remove(filepath.Join(filepath.Dir(o), digestFile)) },
		"object is gone": func(o string) error { return os.Remove(o) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, log := t.TempDir(), &bytes.Buffer{}
			o, err := testCache(t, dir, "", nil, nil).fetchOrCompile(t.Context(), configuration{Shape: v4})
			if err != nil {
				t.Fatal(err)
			}
			object := filepath.Join(dir, o.hash, "bpf_lxc.o")
			good, err := os.ReadFile(object)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(object); err != nil {
				t.Fatal(err)
			}
			if _, err := testCache(t, dir, "", nil, log).fetchOrCompile(t.Context(), configuration{Shape: v4}); err != nil {
				t.Fatal(err)
			}
			if now, _ := os.ReadFile(object); !bytes.Equal(now, good) || !strings.Contains(log.String(), "Compiled new") {
				t.Errorf("the object was not made again: %s", log)
			}
		})
	}
}

func flip(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	return os.WriteFile(path, data, 0o644)
}

func TestAWaiterThatGivesUpFreesOnlyItself(t *testing.T) {
	testutils.Needs(t, testutils.Tool("clang-19"))
	dir := t.TempDir()
	started, release := filepath.Join(dir, "started"), filepath.Join(dir, "release")
	for _, f := range []string{started, release} {
		if err := exec.Command("mkfifo", f).Run(); err != nil {
			t.Fatal(err)
		}
	}
	// The fake tells that it runs and waits for leave to go on.
	clang := script(t, fmt.Sprintf("echo > %s\ncat %s > /dev/null\nexec clang-19 \"$@\"\n", started, release))
	cache := testCache(t, t.TempDir(), clang, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		object *object
		err    error
	}
	fetch := func(ctx context.Context) chan result {
		c := make(chan result, 1)
		go func() {
			o, err := cache.fetchOrCompile(ctx, configuration{Shape: v4})
			c <- result{o, err}
		}()
		return c
	}
	cause := fetch(ctx) // the one that caused the compile
	if _, err := os.ReadFile(started); err != nil {
		t.Fatal(err)
	}
	patient := fetch(t.Context())
	for waiters(cache) != 2 { // until the second has joined
	}
	cancel()
	if r := <-cause; !errors.Is(r.err, context.Canceled) {
		t.Fatalf("the cancelled caller got %v", r.err)
	}
	if err := os.WriteFile(release, nil, 0); err != nil {
		t.Fatal(err)
	}
	if r := <-patient; r.err != nil || r.object == nil {
		t.Fatalf("the patient caller got %v", r.err)
	}
}

func waiters(c *objectCache) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.specs {
		n += e.waiters
	}
	return n
}

func TestACancelledCompileIsNotACompileError(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	if err := exec.Command("mkfifo", started).Run(); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	cache := testCache(t, state, script(t, fmt.Sprintf("echo > %s\nsleep 1000 &\nwait\n", started)), nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(started)
		cancel()
	}()
	_, err := cache.fetchOrCompile(ctx, configuration{Shape: v4})
	var refused *compileError
	if !errors.Is(err, context.Canceled) || errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	cache.workers.Wait() // the compiler and its child are gone, or this does not return
	if left, _ := os.ReadDir(state); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAFailingClangNamesShapeMessageAndDirectory(t *testing.T) {
	log := &bytes.Buffer{}
	state := t.TempDir()
	cache := testCache(t, state, script(t, "echo 'note: hello' >&2\necho 'src/bpf_lxc.c:3:1: error: unknown type name' >&2\nexit 1\n"), nil, log)
	_, err := cache.fetchOrCompile(t.Context(), configuration{Shape: both})
	hash := cache.base.hashTemplate(wrap(configuration{Shape: both}))
	var refused *compileError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	dir := filepath.Join(state, "failed-"+hash)
	for _, want := range []string{"shape v4+v6", "error: unknown type name", dir, "exit status 1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	for _, f := range []string{"clang.log", "shape.h", "src/bpf_lxc.c"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "Compiler message"); n != 2 {
		t.Errorf("%d lines were logged, want 2", n)
	}
}

func TestCompilerMessagesAreLimited(t *testing.T) {
	log := &bytes.Buffer{}
	cache := testCache(t, t.TempDir(), script(t, "yes 'error: again and again' | head -c 1000000 >&2\nexit 1\n"), nil, log)
	_, err := cache.fetchOrCompile(t.Context(), configuration{Shape: v4})
	hash := cache.base.hashTemplate(wrap(configuration{Shape: v4}))
	if err == nil {
		t.Fatal("no error")
	}
	data, err := os.ReadFile(filepath.Join(cache.dir, "failed-"+hash, "clang.log"))
	if err != nil || len(data) != maxOutput {
		t.Errorf("kept %d bytes, %v", len(data), err)
	}
}

func TestAMissingClangSaysWhatCanBeDone(t *testing.T) {
	cache := testCache(t, t.TempDir(), "/nowhere/clang", nil, nil)
	_, err := cache.fetchOrCompile(t.Context(), configuration{Shape: Shape{IPv4: true, Debug: true}})
	if !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"v4+debug", "install the package clang-19", "v4+v6, v4, v6", "/nowhere/clang"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}

func TestABuiltInObjectNeedsNeitherClangNorDisk(t *testing.T) {
	testutils.Needs(t, testutils.Tool("clang-19"))
	dir := filepath.Join(t.TempDir(), "objects")
	build := Build{Sources: small(), Dir: dir, Logger: slog.New(slog.DiscardHandler)}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "former.o"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := BuildObjects(t.Context(), build, BuiltinShapes())
	if err != nil || len(files) != 3 {
		t.Fatalf("built %v, %v", files, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 3 {
		t.Errorf("objects of former sources stayed: %v", left)
	}
	build.Clang = "/nowhere/clang"
	if _, err := BuildObjects(t.Context(), build, BuiltinShapes()); err != nil {
		t.Errorf("unchanged objects were built again: %v", err)
	}
	state := t.TempDir()
	cache := testCache(t, state, "/nowhere/clang", os.DirFS(filepath.Dir(dir)), nil)
	for _, s := range BuiltinShapes() {
		if _, err := cache.fetchOrCompile(t.Context(), configuration{Shape: s}); err != nil {
			t.Errorf("shape %s: %v", s, err)
		}
	}
	if left, _ := os.ReadDir(state); len(left) != 0 {
		t.Errorf("written to disk: %v", left)
	}
}

func TestTheHashCoversSourcesFlagsAndShapeAndNothingOfTheEndpoint(t *testing.T) {
	hash := func(sources fs.FS, flags []string, cfg configuration) string {
		b, err := newBaseHash(sources, flags)
		if err != nil {
			t.Fatal(err)
		}
		return b.hashTemplate(wrap(cfg))
	}
	one := fstest.MapFS{"a.c": {Data: []byte("1")}, "lib/b.h": {Data: []byte("2")}, "README": {Data: []byte("x")}, "tests/t.c": {Data: []byte("x")}}
	base := hash(one, []string{"-O2"}, configuration{v4, endpoint(1)})
	same := fstest.MapFS{"a.c": one["a.c"], "lib/b.h": one["lib/b.h"], "README": {Data: []byte("y")}}
	if hash(same, []string{"-O2"}, configuration{v4, endpoint(2)}) != base {
		t.Error("the endpoint's data, or a file that is no source, changed the hash")
	}
	for name, other := range map[string]string{
		"source": hash(fstest.MapFS{"a.c": {Data: []byte("3")}, "lib/b.h": one["lib/b.h"]}, []string{"-O2"}, configuration{Shape: v4}),
		"name":   hash(fstest.MapFS{"c.c": one["a.c"], "lib/b.h": one["lib/b.h"]}, []string{"-O2"}, configuration{Shape: v4}),
		"moved":  hash(fstest.MapFS{"a.c": {Data: []byte("12")}, "lib/b.h": {}}, []string{"-O2"}, configuration{Shape: v4}),
		"flags":  hash(one, []string{"-O1"}, configuration{Shape: v4}),
		"shape":  hash(one, []string{"-O2"}, configuration{Shape: both}),
	} {
		if other == base {
			t.Errorf("another %s gives the same hash", name)
		}
	}
	if _, err := newBaseHash(fstest.MapFS{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no sources: %v", err)
	}
}

func TestAnEndpointWithoutItsValuesIsRefused(t *testing.T) {
	for name, change := range map[string]func(*Endpoint){
		"id 0":                func(e *Endpoint) { e.ID = 0 },
		"the template's id":   func(e *Endpoint) { e.ID = 65535 },
		"no identity":         func(e *Endpoint) { e.Identity = 0 },
		"no MAC":              func(e *Endpoint) { e.MAC = types.MAC{} },
		"no node MAC":         func(e *Endpoint) { e.NodeMAC = types.MAC{} },
		"no interface":        func(e *Endpoint) { e.IfIndex = 0 },
		"IPv6 for IPv4":       func(e *Endpoint) { e.IPv4 = e.IPv6 },
		"IPv4 for IPv6":       func(e *Endpoint) { e.IPv6 = e.IPv4 },
		"mapped IPv4 as IPv6": func(e *Endpoint) { e.IPv6 = netip.MustParseAddr("::ffff:10.0.0.1") },
	} {
		e := endpoint(5)
		change(&e)
		if err := (configuration{v4, e}).check(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := (configuration{v4, endpoint(5)}).check(); err != nil {
		t.Error(err)
	}
	if err := (configuration{Shape{Debug: true}, endpoint(5)}).check(); err == nil {
		t.Error("a shape without address family was accepted")
	}
}

func TestNewNeedsItsParts(t *testing.T) {
	if _, err := New(Config{Sources: small(), StateDir: t.TempDir(), Root: bpf.Root{}}); err == nil {
		t.Error("a loader without logger and root was made")
	}
}
