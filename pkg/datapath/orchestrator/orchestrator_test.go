package orchestrator

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/loader"
)

// fakeLoader notes what is asked of it and fails if a build runs during an
// initialisation.
type fakeLoader struct {
	mu       sync.Mutex
	calls    []string
	building int
	prepare  func() error // nil: succeeds
	t        testing.TB
}

func (f *fakeLoader) note(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, s)
}

func (f *fakeLoader) Prepare(context.Context, loader.Shape) error {
	f.note("prepare")
	time.Sleep(time.Second) // fake clock
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.building > 0 {
		f.t.Error("initialisation while endpoints are built")
	}
	if f.prepare != nil {
		return f.prepare()
	}
	return nil
}

func (f *fakeLoader) Load(context.Context, loader.Shape, loader.Endpoint) (loader.Programs, error) {
	f.note("load")
	f.mu.Lock()
	f.building++
	f.mu.Unlock()
	time.Sleep(time.Second)
	f.mu.Lock()
	f.building--
	f.mu.Unlock()
	return loader.Programs{}, nil
}

func (f *fakeLoader) ReleaseRetired(context.Context) (int, error) { f.note("release"); return 1, nil }
func (f *fakeLoader) Forget(uint16) error                         { f.note("forget"); return nil }

func fake(t testing.TB) (*Orchestrator, *fakeLoader) {
	f := &fakeLoader{t: t}
	o := New(Config{Loader: f, Logger: slog.New(slog.DiscardHandler), Shape: loader.Shape{IPv4: true}})
	o.hooks = hooks{
		attach: func(int, loader.Programs) error { f.note("attach"); return nil },
		detach: func(int) error { f.note("detach"); return nil },
		query:  func(int) (attach.Attached, error) { return attach.Attached{From: 1, To: 2}, nil },
	}
	return o, f
}

// startup is a node that comes up with an endpoint waiting to be built: the
// build begins before initialisation does. It returns both results.
func startup(t *testing.T, o *Orchestrator) (build, initialise error) {
	// An hour of the bubble's clock, which moves only when all of it is stuck.
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	built := make(chan error, 1)
	go func() {
		_, err := o.ReloadDatapath(ctx, Endpoint{ID: 1})
		built <- err
	}()
	synctest.Wait() // the build has gone as far as it gets
	initialise = o.Initialize(ctx)
	return <-built, initialise
}

func TestABuildWaitsForInitialisationBeforeItTakesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := fake(t)
		if build, initialise := startup(t, o); build != nil || initialise != nil {
			t.Errorf("deadlock: build %v, initialise %v", build, initialise)
		}
		if !slices.Equal(f.calls, []string{"prepare", "load"}) {
			t.Errorf("calls: %v", f.calls)
		}
	})
}

// The proof that the test above would notice: with the order reversed the same
// start gets stuck.
func TestTheReversedOrderDeadlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := fake(t)
		slices.Reverse(o.order)
		build, initialise := startup(t, o)
		if !errors.Is(build, context.DeadlineExceeded) && !errors.Is(initialise, context.DeadlineExceeded) {
			t.Errorf("no deadlock: build %v, initialise %v", build, initialise)
		}
		if slices.Contains(f.calls, "load") {
			t.Errorf("calls: %v", f.calls)
		}
	})
}

func TestNoEndpointIsBuiltDuringAReinitialisation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := fake(t)
		if err := o.Initialize(t.Context()); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Millisecond)
				if l, err := o.ReloadDatapath(t.Context(), Endpoint{ID: uint16(i + 1)}); err != nil || l.Close() != nil {
					t.Error(err)
				}
			})
			if i%5 == 0 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 400 * time.Millisecond)
					if err := o.Initialize(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		if len(f.calls) != 25 {
			t.Errorf("%d calls", len(f.calls))
		}
	})
}

func TestAFailedInitialisationCanBeRepeatedAndOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := fake(t)
		broken := errors.New("broken")
		f.prepare = func() error { return broken }
		if err := o.Initialize(t.Context()); !errors.Is(err, broken) {
			t.Fatalf("got %v", err)
		}
		select {
		case <-o.DatapathInitialized():
			t.Fatal("initialised after a failure")
		default:
		}
		f.prepare = nil
		for range 2 {
			if err := o.Initialize(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-o.DatapathInitialized()
		}
	})
}

func TestTheNodeIsSetUpBeforeAnythingIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := fake(t)
		broken := errors.New("read-only /proc/sys")
		o.cfg.SetUpNode = func(context.Context) error { f.note("node"); return broken }
		if err := o.Initialize(t.Context()); !errors.Is(err, broken) || !slices.Equal(f.calls, []string{"node"}) {
			t.Errorf("%v, calls %v", err, f.calls)
		}
	})
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := fake(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.ReloadDatapath(ctx, Endpoint{ID: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before initialisation: %v", err)
		}
		if err := o.Initialize(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := o.lock.RLock(t.Context()); err != nil { // a build that takes long
			t.Fatal(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := o.Initialize(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("initialisation behind a build: %v", err)
		}
		// The writer that gave up keeps no reader out.
		if l, err := o.ReloadDatapath(t.Context(), Endpoint{ID: 1}); err != nil || l.Close() != nil {
			t.Errorf("a second build: %v", err)
		}
		o.lock.RUnlock()
		if err := o.lock.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.ReloadDatapath(ctx, Endpoint{ID: 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a build behind an initialisation: %v", err)
		}
		o.lock.Unlock()
	})
}

func TestAttachUnloadAndSweepReachTheirHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, f := fake(t)
		if err := o.Initialize(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := o.ReloadDatapath(t.Context(), Endpoint{ID: 1, IfIndex: 4})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Attach(), l.Close(), o.Unload(Endpoint{ID: 1, IfIndex: 4}), o.Unload(Endpoint{ID: 1})); err != nil {
			t.Fatal(err)
		}
		if n, err := o.Sweep(t.Context()); n != 1 || err != nil {
			t.Errorf("sweep: %d, %v", n, err)
		}
		if a, err := o.Attached(4); err != nil || a != (attach.Attached{From: 1, To: 2}) {
			t.Errorf("attached: %v, %v", a, err)
		}
		want := []string{"prepare", "load", "attach", "detach", "forget", "forget", "release"}
		if !slices.Equal(f.calls, want) {
			t.Errorf("calls %v, want %v", f.calls, want)
		}
	})
}
