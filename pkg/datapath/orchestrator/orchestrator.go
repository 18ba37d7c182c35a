package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/loader"
)

// datapathLoader is what the orchestrator needs of a loader.Loader.
type datapathLoader interface {
	Prepare(ctx context.Context, shape loader.Shape) error
	Load(ctx context.Context, shape loader.Shape, e loader.Endpoint) (loader.Programs, error)
	ReleaseRetired(ctx context.Context) (int, error)
	Forget(id uint16) error
}

// hooks is what the orchestrator needs of package attach.
type hooks struct {
	attach func(ifindex int, p loader.Programs) error
	detach func(ifindex int) error
	query  func(ifindex int) (attach.Attached, error)
}

func kernelHooks() hooks {
	return hooks{
		attach: func(ifindex int, p loader.Programs) error { return attach.Attach(ifindex, p.From, p.To) },
		detach: attach.Detach,
		query:  attach.Query,
	}
}

// Endpoint is a snapshot of what the data plane must know of one endpoint.
type Endpoint = loader.Endpoint

// Config is what an Orchestrator is made of. Read-only afterwards.
type Config struct {
	Loader datapathLoader
	Logger *slog.Logger
	Shape  loader.Shape // of all endpoints
	// SetUpNode prepares the node: its kernel settings. It is called at every
	// initialisation and must be repeatable. Nil: nothing to do.
	SetUpNode func(ctx context.Context) error
}

// Orchestrator starts the data plane and builds endpoints. Safe for concurrent use.
type Orchestrator struct {
	cfg   Config
	hooks hooks
	order []gate // what a build passes first

	lock        compilationLock
	initialized chan struct{} // closed by the first successful Initialize

	mu      sync.Mutex    // guards what follows and the closing of initialized
	changed chan struct{} // closed and made anew when an Initialize ends
	failure error         // of the last Initialize; nil while it runs or after a success
}

// gate is one thing that a build must pass; leave undoes it after the build.
type gate func(ctx context.Context) (leave func(), err error)

// New makes an Orchestrator that has not initialised anything yet.
func New(cfg Config) *Orchestrator {
	o := &Orchestrator{cfg: cfg, hooks: kernelHooks(), initialized: make(chan struct{}), changed: make(chan struct{})}
	// This order is firm, see the package documentation.
	o.order = []gate{o.waitInitialized, o.shareLock}
	return o
}

// DatapathInitialized is closed once base initialisation has succeeded.
func (o *Orchestrator) DatapathInitialized() <-chan struct{} { return o.initialized }

// Initialize sets the node up and loads the bodies of the shape, while no
// endpoint is built. It may be called again, after a failure or to renew the
// set-up; endpoints built before keep working meanwhile. Until a first success builds
// fail with the reason of the last failure.
func (o *Orchestrator) Initialize(ctx context.Context) error {
	err := o.initialize(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure = err; err == nil && !o.isInitialized() {
		close(o.initialized)
	}
	close(o.changed)
	o.changed = make(chan struct{})
	return err
}

func (o *Orchestrator) initialize(ctx context.Context) error {
	if err := o.lock.Lock(ctx); err != nil {
		return fmt.Errorf("initialise the data plane: wait for running builds: %w", err)
	}
	defer o.lock.Unlock()
	if o.cfg.SetUpNode != nil {
		if err := o.cfg.SetUpNode(ctx); err != nil {
			return fmt.Errorf("initialise the data plane: set up the node: %w", err)
		}
	}
	if err := o.cfg.Loader.Prepare(ctx, o.cfg.Shape); err != nil {
		return fmt.Errorf("initialise the data plane: %w", err)
	}
	return nil
}

func (o *Orchestrator) isInitialized() bool {
	select {
	case <-o.initialized:
		return true
	default:
		return false
	}
}

// waitInitialized does not wait for another attempt after one that failed.
func (o *Orchestrator) waitInitialized(ctx context.Context) (func(), error) {
	for !o.isInitialized() {
		o.mu.Lock()
		failure, changed := o.failure, o.changed
		o.mu.Unlock()
		if failure != nil {
			return nil, fmt.Errorf("the data plane is not ready, which is tried again: %w", failure)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the data plane's initialisation: %w", context.Cause(ctx))
		}
	}
	return func() {}, nil
}

func (o *Orchestrator) shareLock(ctx context.Context) (func(), error) {
	if err := o.lock.RLock(ctx); err != nil {
		return nil, fmt.Errorf("wait for the data plane's re-initialisation: %w", err)
	}
	return o.lock.RUnlock, nil
}

// pass goes through all gates; leave goes back.
func (o *Orchestrator) pass(ctx context.Context) (leave func(), err error) {
	var leaves []func()
	leave = func() {
		for i := len(leaves) - 1; i >= 0; i-- {
			leaves[i]()
		}
	}
	for _, g := range o.order {
		l, err := g(ctx)
		if err != nil {
			leave()
			return nil, err
		}
		leaves = append(leaves, l)
	}
	return leave, nil
}

// Loaded is an endpoint's pair of programs in the kernel, not attached yet.
type Loaded struct {
	ifindex  int
	programs loader.Programs
	hooks    hooks
}

// Attach puts the programs on the endpoint's link, in place of former ones.
// The endpoint's policy must be in the kernel before.
func (l *Loaded) Attach() error { return l.hooks.attach(l.ifindex, l.programs) }

// Close gives the programs up. Those that were attached stay on their link.
func (l *Loaded) Close() error { return l.programs.Close() }

// ReloadDatapath loads programs with the endpoint's constants, after base
// initialisation and never during one. The caller attaches and closes them.
func (o *Orchestrator) ReloadDatapath(ctx context.Context, e Endpoint) (*Loaded, error) {
	leave, err := o.pass(ctx)
	if err != nil {
		return nil, fmt.Errorf("load the programs of endpoint %d: %w", e.ID, err)
	}
	defer leave()
	programs, err := o.cfg.Loader.Load(ctx, o.cfg.Shape, e)
	if err != nil {
		return nil, err
	}
	return &Loaded{ifindex: int(e.IfIndex), programs: programs, hooks: o.hooks}, nil
}

// Attached tells which of our programs run on a link.
func (o *Orchestrator) Attached(ifindex int) (attach.Attached, error) { return o.hooks.query(ifindex) }

// Unload takes an endpoint's programs off its link and removes what a failed
// load left. A link that is gone is no error; IfIndex 0 means that there is none.
func (o *Orchestrator) Unload(e Endpoint) error {
	var err error
	if e.IfIndex != 0 {
		err = o.hooks.detach(int(e.IfIndex))
	}
	if err = errors.Join(err, o.cfg.Loader.Forget(e.ID)); err != nil {
		return fmt.Errorf("unload endpoint %d: %w", e.ID, err)
	}
	return nil
}

// Sweep releases program arrays of former agents that no endpoint uses any
// more. Call it when all restored endpoints have been regenerated, and every
// minute or so until it has returned 0 twice.
func (o *Orchestrator) Sweep(ctx context.Context) (released int, err error) {
	released, err = o.cfg.Loader.ReleaseRetired(ctx)
	if released > 0 {
		o.cfg.Logger.Info("Released program arrays that no endpoint uses", "count", released)
	}
	return released, err
}
