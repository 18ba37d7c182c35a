package endpoint

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// ErrQueueClosed says that no more builds are handed out.
var ErrQueueClosed = errors.New("the build queue is closed")

// DefaultParallel is the default of endpointMaxRegenerationsInParallel: the
// number of processors, at least 2.
func DefaultParallel() int { return max(2, runtime.NumCPU()) }

// Build is one build that was taken from the queue. Hand it back with Done.
type Build struct {
	Endpoint *Endpoint
	Level    regeneration.Level // the highest of the merged requests
	Reasons  []string           // of the merged requests, oldest first, without repetition
	Queued   time.Time          // when the oldest request came
	Context  context.Context    // cancelled when the endpoint is taken from the queue

	cancel context.CancelFunc
	ended  chan struct{}
}

// maxReasons bounds what a queued build remembers of merged requests.
const maxReasons = 8

// BuildQueue hands out builds first come, first served: at most one at a time
// for each endpoint, at most a given number over all. A request for an endpoint
// that is already queued is merged into the queued one.
type BuildQueue struct {
	limit int

	mu      sync.Mutex
	changed *sync.Cond
	waiting []*Build
	running map[*Endpoint]*Build
	closed  bool
}

// NewBuildQueue returns a queue that lets parallel builds run at a time
// (endpointMaxRegenerationsInParallel); 0 means DefaultParallel.
func NewBuildQueue(parallel int) *BuildQueue {
	if parallel <= 0 {
		parallel = DefaultParallel()
	}
	q := &BuildQueue{limit: parallel, running: map[*Endpoint]*Build{}}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// Enqueue asks for a build. A request that is merged keeps its place in the
// queue. After Close it does nothing.
func (q *BuildQueue) Enqueue(e *Endpoint, level regeneration.Level, reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	for _, b := range q.waiting {
		if b.Endpoint == e {
			b.Level = regeneration.Max(b.Level, level)
			if len(b.Reasons) < maxReasons && !slices.Contains(b.Reasons, reason) {
				b.Reasons = append(b.Reasons, reason)
			}
			return
		}
	}
	q.waiting = append(q.waiting, &Build{
		Endpoint: e, Level: level, Reasons: []string{reason}, Queued: time.Now(), ended: make(chan struct{}),
	})
	q.changed.Broadcast()
}

// Next waits for a build that may run. It fails with ErrQueueClosed or with the
// context's error.
func (q *BuildQueue) Next(ctx context.Context) (*Build, error) {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return nil, ErrQueueClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if b := q.pick(); b != nil {
			b.Context, b.cancel = context.WithCancel(ctx)
			q.running[b.Endpoint] = b
			return b, nil
		}
		q.changed.Wait()
	}
}

// pick takes the oldest build whose endpoint is not being built.
func (q *BuildQueue) pick() *Build {
	if len(q.running) >= q.limit {
		return nil
	}
	for i, b := range q.waiting {
		if q.running[b.Endpoint] == nil {
			q.waiting = slices.Delete(q.waiting, i, i+1)
			return b
		}
	}
	return nil
}

// Done ends a build and lets the next one run.
func (q *BuildQueue) Done(b *Build) {
	b.cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[b.Endpoint] == b {
		delete(q.running, b.Endpoint)
		close(b.ended)
	}
	q.changed.Broadcast()
}

// Cancel forgets the endpoint's queued build and cancels the one that runs. It
// returns when none runs any more, or with the context's error.
func (q *BuildQueue) Cancel(ctx context.Context, e *Endpoint) error {
	q.mu.Lock()
	q.waiting = slices.DeleteFunc(q.waiting, func(b *Build) bool { return b.Endpoint == e })
	b := q.running[e]
	q.mu.Unlock()
	if b == nil {
		return nil
	}
	b.cancel()
	select {
	case <-b.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Load says how many builds wait and how many run.
func (q *BuildQueue) Load() (waiting, running int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting), len(q.running)
}

// Close drops what waits, cancels what runs and lets Next fail.
func (q *BuildQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting = true, nil
	for _, b := range q.running {
		b.cancel()
	}
	q.changed.Broadcast()
}
