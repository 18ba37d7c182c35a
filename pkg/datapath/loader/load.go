package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// Names in the object.
const (
	fromEntry = "weir_from_container" // host side of the veth, ingress
	toEntry   = "weir_to_container"   // host side of the veth, egress
	fromBody  = "weir_from_body"      // slot 0 of the program array
	toBody    = "weir_to_body"        // slot 1
	callsMap  = "weir_calls"
)

func entryPrograms() []string { return []string{fromEntry, toEntry} }
func bodyPrograms() []string  { return []string{fromBody, toBody} } // index = slot

// Config is what a Loader is made of. Read-only afterwards.
type Config struct {
	StateDir string               // compiled objects, records and logs are kept below it
	Root     bpf.Root             // pins
	Clang    string               // path or name; empty: clang-19, else clang
	Source   string               // file to compile; empty: bpf_lxc.c
	Sources  fs.FS                // the folder bpf/ (bpf.Sources)
	Objects  fs.FS                // built-in objects (bpf.Objects); nil: none
	Maps     map[string]*ebpf.Map // the agent's maps by their name in C; not closed by the Loader
	Logger   *slog.Logger
}

// Loader compiles and loads. Safe for concurrent use.
type Loader struct {
	cfg   Config
	cache *objectCache
	ids   map[string]uint32 // of cfg.Maps

	mu     sync.Mutex            // guards shapes
	shapes map[string]*shapeSlot // by hash
	pins   sync.Mutex            // one change of the pins under <root>/shapes at a time
}

// Program is one loaded program. Close gives up the reference; a filter that
// was made from it keeps the program alive.
type Program struct {
	name string
	prog *ebpf.Program
	id   uint32
}

// FD is the program's descriptor, valid until Close.
func (p Program) FD() int { return p.prog.FD() }

// ID is the kernel's number of the program, unique until reboot.
func (p Program) ID() uint32 { return p.id }

// Name is the name in the object, for example weir_from_container.
func (p Program) Name() string { return p.name }

// Programs are an endpoint's two entry programs.
type Programs struct {
	From, To Program
}

// Close gives up both references. Closing twice, or a zero value, does nothing.
func (p *Programs) Close() error {
	err := errors.Join(p.From.prog.Close(), p.To.prog.Close())
	p.From.prog, p.To.prog = nil, nil
	return err
}

// New reads the sources and prepares the state directory; it loads nothing yet.
func New(cfg Config) (*Loader, error) {
	if cfg.Source == "" {
		cfg.Source = "bpf_lxc.c"
	}
	if cfg.Sources == nil || cfg.Logger == nil || cfg.StateDir == "" || cfg.Root.Path == "" {
		return nil, errors.New("make a loader: sources, logger, state directory and bpffs root must be given")
	}
	ids := make(map[string]uint32, len(cfg.Maps))
	for name, m := range cfg.Maps {
		id, err := mapID(m)
		if err != nil {
			return nil, fmt.Errorf("make a loader: map %s: %w", name, err)
		}
		ids[name] = id
	}
	c := &compiler{path: cfg.Clang, source: cfg.Source, sources: cfg.Sources, logger: cfg.Logger}
	cache, err := newObjectCache(filepath.Join(cfg.StateDir, "templates"), cfg.Objects, c, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("make a loader: %w", err)
	}
	return &Loader{cfg: cfg, cache: cache, ids: ids, shapes: make(map[string]*shapeSlot)}, nil
}

// Close stops running compiles and gives up the references to loaded bodies.
// Pins stay, so attached programs go on working.
func (l *Loader) Close() error {
	l.cache.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for hash, slot := range l.shapes {
		errs = append(errs, slot.close())
		delete(l.shapes, hash)
	}
	return errors.Join(errs...)
}

// Fetch finds or compiles the object of a shape and hands nothing to the kernel.
func (l *Loader) Fetch(ctx context.Context, shape Shape) error {
	_, err := l.fetch(ctx, shape)
	return err
}

// Prepare compiles a shape and loads its bodies, so that the first endpoint
// does not wait for it.
func (l *Loader) Prepare(ctx context.Context, shape Shape) error {
	object, err := l.fetch(ctx, shape)
	if err != nil {
		return err
	}
	_, err = l.loadShape(ctx, shape, object)
	return err
}

func (l *Loader) fetch(ctx context.Context, shape Shape) (*object, error) {
	if err := shape.check(); err != nil {
		return nil, err
	}
	return l.cache.fetchOrCompile(ctx, configuration{Shape: shape})
}

// Load returns an endpoint's entry programs, ready to be attached. The caller
// closes them, after attaching or instead of it. Errors that a person can act
// on: no clang, a refusal by clang, a refusal by the verifier (*RefusedError).
func (l *Loader) Load(ctx context.Context, shape Shape, e Endpoint) (Programs, error) {
	cfg := configuration{shape, e}
	if err := cfg.check(); err != nil {
		return Programs{}, fmt.Errorf("load the programs of endpoint %d: %w", e.ID, err)
	}
	object, err := l.cache.fetchOrCompile(ctx, cfg)
	if err != nil {
		return Programs{}, fmt.Errorf("load the programs of endpoint %d: %w", e.ID, err)
	}
	body, err := l.loadShape(ctx, shape, object)
	if err != nil {
		return Programs{}, fmt.Errorf("load the programs of endpoint %d: %w", e.ID, err)
	}
	programs, err := l.loadEntries(object.entries, body, e)
	if err != nil {
		return Programs{}, fmt.Errorf("load the programs of endpoint %d: %w", e.ID, err)
	}
	return programs, nil
}

// loadEntries loads the two entry programs, after writing the constants into them.
func (l *Loader) loadEntries(entries part, body *loadedShape, e Endpoint) (Programs, error) {
	if err := substitute(entries.plain, e); err != nil {
		return Programs{}, err
	}
	maps, _, err := l.sharedMaps(entries)
	if err != nil {
		return Programs{}, err
	}
	maps[callsMap] = body.calls
	log := filepath.Join(l.cfg.StateDir, "endpoints", strconv.Itoa(int(e.ID)), "verifier.log")
	coll, err := l.loadCollection(entries, maps, log)
	if err != nil {
		return Programs{}, err
	}
	defer coll.Close()
	var p Programs
	for name, to := range map[string]*Program{fromEntry: &p.From, toEntry: &p.To} {
		prog := coll.DetachProgram(name)
		to.name, to.prog = name, prog
		if to.id, err = programID(prog); err != nil {
			return Programs{}, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// programID reads the id from the descriptor's fdinfo. Asking for the whole
// info of a program takes as long as loading it.
func programID(p *ebpf.Program) (uint32, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", p.FD()))
	if err != nil {
		return 0, fmt.Errorf("ask for the id of a loaded program: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "prog_id:"); ok {
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				return 0, fmt.Errorf("ask for the id of a loaded program: %w", err)
			}
			return uint32(id), nil
		}
	}
	return 0, errors.New("ask for the id of a loaded program: the kernel does not tell it in fdinfo; Weir needs Linux 4.15 or later")
}

// Forget removes what a refused load of the endpoint left on disk.
func (l *Loader) Forget(id uint16) error {
	err := os.Remove(filepath.Join(l.cfg.StateDir, "endpoints", strconv.Itoa(int(id)), "verifier.log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the verifier log of endpoint %d: %w", id, err)
	}
	return nil
}
