package regenerator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// undoTimeout bounds what a failed build does to clean up after itself.
const undoTimeout = 30 * time.Second

// Regenerator consumes the build queue.
type Regenerator struct {
	cfg Config

	mu      sync.Mutex
	retries map[*endpoint.Endpoint]*retry
	closed  bool

	stop    context.CancelFunc
	workers sync.WaitGroup
}

// retry counts failures in a row and holds the timer of the next attempt.
type retry struct {
	failures int
	timer    *time.Timer
}

// New returns a Regenerator that does nothing before Start.
func New(cfg Config) *Regenerator {
	if cfg.RetryMin <= 0 {
		cfg.RetryMin = time.Second
	}
	if cfg.RetryMax <= 0 {
		cfg.RetryMax = time.Minute
	}
	return &Regenerator{cfg: cfg, retries: map[*endpoint.Endpoint]*retry{}, stop: func() {}}
}

// Start begins to build. Call it once, when all restored endpoints are registered.
func (r *Regenerator) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.workers.Add(1)
	go r.dispatch(ctx)
}

// Close ends running builds and waits for them. What is in the kernel stays.
func (r *Regenerator) Close() {
	r.stop()
	r.mu.Lock()
	r.closed = true
	for _, t := range r.retries {
		t.timer.Stop()
	}
	r.mu.Unlock()
	r.workers.Wait()
}

// dispatch starts a goroutine for each build that the queue lets run.
func (r *Regenerator) dispatch(ctx context.Context) {
	defer r.workers.Done()
	for {
		b, err := r.cfg.Queue.Next(ctx)
		if err != nil {
			return
		}
		r.workers.Add(1)
		go func() {
			defer r.workers.Done()
			defer r.cfg.Queue.Done(b)
			r.build(b)
		}()
	}
}

// build runs one build and settles its outcome.
func (r *Regenerator) build(b *endpoint.Build) {
	e := b.Endpoint
	row, level, ok := e.BeginBuild()
	if !ok {
		return
	}
	level = regeneration.Max(level, b.Level)
	work := &work{r: r, e: e, row: row, level: level}
	out, err := work.run(b.Context)
	if err != nil {
		retry := e.FailBuild(err, level, work.resolved.Revision)
		if errors.Is(err, errStale) || e.Alive().Err() != nil || b.Context.Err() != nil {
			return
		}
		e.Logger("").Warn("Endpoint not built; the state before the build is in force", endpoint.LogError, err, "retry", retry)
		if retry {
			r.retryLater(e, level, err.Error())
		}
		return
	}
	if out.Refused != nil {
		retry := e.CommitPolicy(out, level)
		e.Logger("").Warn("Programs not loaded; those of before go on, with the policy of now", endpoint.LogError, out.Refused, "retry", retry)
		if retry {
			r.retryLater(e, regeneration.LevelLoad, out.Refused.Error())
		}
		return
	}
	leave := e.Enter(regeneration.StationReady, "")
	if !e.CommitBuild(out) {
		return // a newer build is queued; the station is passed by that one
	}
	leave(nil)
	if out.Degraded != "" {
		r.retryLater(e, regeneration.LevelPolicy, "retry: "+out.Degraded)
		return
	}
	r.forget(e)
}

// retryLater asks for another build after a delay that doubles with every
// failure in a row. A request from elsewhere is not held up by it.
func (r *Regenerator) retryLater(e *endpoint.Endpoint, level regeneration.Level, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	t := r.retries[e]
	if t == nil {
		t = &retry{}
		r.retries[e] = t
	} else {
		t.timer.Stop()
	}
	wait := r.cfg.RetryMin << min(t.failures, 16)
	wait = min(wait, r.cfg.RetryMax)
	t.failures++
	e.Note(endpoint.TopicBPF, endpoint.SeverityWarning, "next attempt in %s", wait)
	t.timer = time.AfterFunc(wait, func() { e.Retry(level, reason) })
}

// forget ends the count of failures.
func (r *Regenerator) forget(e *endpoint.Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.retries[e]; t != nil {
		t.timer.Stop()
		delete(r.retries, e)
	}
}

// owner is the name under which an endpoint's addresses are published.
func owner(id uint16) string { return fmt.Sprintf("endpoint/%d", id) }
