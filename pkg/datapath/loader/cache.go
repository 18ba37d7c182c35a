package loader

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/atomicfile"
)

const (
	digestFile  = "digest" // SHA-256 of the object beside it
	buildPrefix = "build-"
	failedName  = "failed-" // a build directory kept for people, by hash
)

// objectCache finds or makes the object of a shape.
type objectCache struct {
	dir      string // <state>/templates
	base     baseHash
	compiler *compiler
	objects  fs.FS // built in: objects/<hash>.o
	logger   *slog.Logger

	ctx     context.Context // ends with close
	stop    context.CancelFunc
	workers sync.WaitGroup

	mu    sync.Mutex
	specs map[string]*cachedSpec // by hash
}

// object is a compiled object, parsed and cut in two.
type object struct {
	hash            string
	entries, bodies part
}

// part holds some of an object's programs with the maps and constants they
// need: plain to be loaded, lines with source lines, to explain a refusal.
type part struct {
	plain *ebpf.CollectionSpec
	lines *ebpf.CollectionSpec // shared by all copies, never changed
}

func (p part) copy() part { return part{p.plain.Copy(), p.lines} }

// cachedSpec is one object, being made until done is closed.
type cachedSpec struct {
	done   chan struct{}
	object *object            // valid after done, if err is nil; never changed
	err    error              // valid after done
	cancel context.CancelFunc // stops the making

	waiters int // guarded by objectCache.mu
}

func newObjectCache(dir string, objects fs.FS, c *compiler, logger *slog.Logger) (*objectCache, error) {
	base, err := newBaseHash(c.sources, compileFlags())
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Dir(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the directory of compiled objects: %w", err)
	}
	stale, err := filepath.Glob(filepath.Join(dir, buildPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("look for unfinished builds in %s: %w", dir, err)
	}
	for _, s := range stale { // of a process that was killed
		if err := os.RemoveAll(s); err != nil {
			return nil, fmt.Errorf("remove an unfinished build: %w", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	return &objectCache{dir: dir, base: base, compiler: c, objects: objects, logger: logger,
		ctx: ctx, stop: stop, specs: make(map[string]*cachedSpec)}, nil
}

// close stops running compiles and waits for them.
func (o *objectCache) close() {
	o.stop()
	o.workers.Wait()
}

// fetchOrCompile returns the object for cfg. Its entry programs are a copy,
// which the caller may change; the bodies are everybody's. However many ask at once, one of them is the
// cause of a compile and all get its result. A caller whose ctx ends leaves
// the others waiting; the compile stops when nobody waits for it any more.
func (o *objectCache) fetchOrCompile(ctx context.Context, cfg configuration) (*object, error) {
	template := wrap(cfg)
	hash := o.base.hashTemplate(template)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("find the object of shape %s: %w", cfg.Shape, err)
	}
	entry := o.join(hash, template)
	defer o.leave(hash, entry)
	select {
	case <-entry.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the object of shape %s: %w", cfg.Shape, context.Cause(ctx))
	}
	if entry.err != nil {
		return nil, entry.err
	}
	return &object{hash: hash, entries: entry.object.entries.copy(), bodies: entry.object.bodies}, nil
}

// join returns the entry of hash and starts making it if there was none.
func (o *objectCache) join(hash string, cfg templateCfg) *cachedSpec {
	o.mu.Lock()
	defer o.mu.Unlock()
	entry := o.specs[hash]
	if entry != nil {
		entry.waiters++
		return entry
	}
	ctx, cancel := context.WithCancel(o.ctx)
	entry = &cachedSpec{done: make(chan struct{}), cancel: cancel, waiters: 1}
	o.specs[hash] = entry
	o.workers.Go(func() {
		defer cancel()
		spec, err := o.produce(ctx, hash, cfg)
		if err == nil {
			entry.object = split(hash, spec)
		} else {
			entry.err = err
			o.forget(hash, entry) // the next caller tries again
		}
		close(entry.done)
	})
	return entry
}

// leave takes one waiter off and stops the making that nobody waits for.
func (o *objectCache) leave(hash string, entry *cachedSpec) {
	o.mu.Lock()
	entry.waiters--
	abandoned := entry.waiters == 0
	if abandoned {
		select {
		case <-entry.done:
			abandoned = false
		default:
			delete(o.specs, hash)
		}
	}
	o.mu.Unlock()
	if abandoned {
		entry.cancel()
	}
}

func (o *objectCache) forget(hash string, entry *cachedSpec) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.specs[hash] == entry {
		delete(o.specs, hash)
	}
}

// split cuts a whole object into its two parts.
func split(hash string, spec *ebpf.CollectionSpec) *object {
	cut := func(names []string) part {
		lines := spec.Copy()
		keepPrograms(lines, names)
		lines.Types = nil // the programs hold those they need; copying the rest takes longer than a load
		return part{withoutLines(lines), lines}
	}
	return &object{hash, cut(entryPrograms()), cut(bodyPrograms())}
}

// produce looks into the binary, then on disk, then calls the compiler.
func (o *objectCache) produce(ctx context.Context, hash string, cfg templateCfg) (*ebpf.CollectionSpec, error) {
	if o.objects != nil {
		data, err := fs.ReadFile(o.objects, builtinPath(hash))
		if err == nil {
			return parseObject("built-in object of shape "+cfg.Shape.String(), data)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the built-in object of shape %s: %w", cfg.Shape, err)
		}
	}
	dir := filepath.Join(o.dir, hash)
	object := filepath.Join(dir, o.compiler.object())
	data, err := readVerified(dir, object)
	if err == nil {
		var spec *ebpf.CollectionSpec
		if spec, err = parseObject(object, data); err == nil {
			return spec, nil
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		o.logger.Warn("Cached BPF object is damaged, compiling it again", "path", object, "error", err)
	}
	start := time.Now()
	if data, err = o.compile(ctx, dir, hash, cfg); err != nil {
		return nil, err
	}
	o.logger.Info("Compiled new BPF template", "path", object, "duration", time.Since(start), "shape", cfg.Shape)
	return parseObject(object, data)
}

// builtinPath is where bpf.Objects keeps an object.
func builtinPath(hash string) string { return "objects/" + hash + ".o" }

// compile builds the object in a directory of its own and gives it its name
// when it is complete. A failed build is kept as failed-<hash>.
func (o *objectCache) compile(ctx context.Context, dir, hash string, cfg templateCfg) ([]byte, error) {
	build, err := os.MkdirTemp(o.dir, buildPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a build directory: %w", err)
	}
	defer os.RemoveAll(build)
	if err := o.compiler.prepare(build, cfg.Shape); err != nil {
		return nil, fmt.Errorf("write the sources for clang into %s: %w", build, err)
	}
	if err := o.compiler.run(ctx, build, cfg.Shape); err != nil {
		var refused *compileError
		if errors.As(err, &refused) {
			refused.dir = filepath.Join(o.dir, failedName+hash)
			if kerr := replaceDir(build, refused.dir); kerr != nil {
				return nil, errors.Join(err, kerr)
			}
		}
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(build, o.compiler.object()))
	if err != nil {
		return nil, fmt.Errorf("read the compiled object: %w", err)
	}
	sum := sha256.Sum256(data)
	if err := os.WriteFile(filepath.Join(build, digestFile), []byte(hex.EncodeToString(sum[:])+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("write the digest of the compiled object: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(build, "src")); err != nil {
		return nil, fmt.Errorf("remove the sources of a finished build: %w", err)
	}
	if err := os.Chmod(build, 0o750); err != nil {
		return nil, fmt.Errorf("open the build directory to its group: %w", err)
	}
	if err := replaceDir(build, dir); err != nil {
		return nil, err
	}
	return data, os.RemoveAll(filepath.Join(o.dir, failedName+hash))
}

// replaceDir renames from to to; what was there is removed first.
func replaceDir(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove %s to put a new one there: %w", to, err)
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("move a build to its place: %w", err)
	}
	return nil
}

// readVerified reads an object and compares it with its digest.
func readVerified(dir, object string) ([]byte, error) {
	want, err := os.ReadFile(filepath.Join(dir, digestFile))
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(object)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != strings.TrimSpace(string(want)) {
		return nil, errors.New("content does not match its digest")
	}
	return data, nil
}

// parseObject reads the ELF and checks that the programs are in it.
func parseObject(name string, data []byte) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	for _, p := range append(entryPrograms(), bodyPrograms()...) {
		if spec.Programs[p] == nil {
			return nil, fmt.Errorf("read %s: program %s is missing: agent and BPF sources are of different versions", name, p)
		}
	}
	if spec.Maps[callsMap] == nil {
		return nil, fmt.Errorf("read %s: map %s is missing: agent and BPF sources are of different versions", name, callsMap)
	}
	return spec, nil
}
