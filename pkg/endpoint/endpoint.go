package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// Config is what every endpoint of an agent shares. All fields are required
// except Observe and BootID.
type Config struct {
	Logger     *slog.Logger
	StateDir   string // <state>/endpoints: holds one directory per endpoint, of its number
	BootID     string // of this boot: no record outlives it
	Queue      *BuildQueue
	Identities *IdentityKeeper
	// Observe is told of every change, in order, from the goroutine that owns
	// the endpoint. It must not block and must not take a turn of the endpoint.
	// old is nil for the first row.
	Observe func(old, new *Row)
}

// ErrNotAlive is wrapped by every error that says an endpoint may no longer be changed.
var ErrNotAlive = errors.New("endpoint is going away")

// NotAliveError says in which state an endpoint refused a change.
type NotAliveError struct {
	ID    uint16
	State regeneration.State
}

// Error names the endpoint and its state.
func (e *NotAliveError) Error() string {
	return fmt.Sprintf("endpoint %d is %s and can no longer be changed", e.ID, e.State)
}

// Unwrap makes errors.Is(err, ErrNotAlive) true.
func (e *NotAliveError) Unwrap() error { return ErrNotAlive }

// NotReadyError says how far an endpoint came that did not become ready in time.
type NotReadyError struct {
	ID      uint16
	Passed  regeneration.Station // the last one; may be empty
	Waiting regeneration.Station // being passed, or failed, or else the next one; empty after the last
	Reason  string               // what went wrong last; may be empty
	Err     error                // the context's, or a NotAliveError
}

// Error names the stations and the reason.
func (e *NotReadyError) Error() string {
	s := fmt.Sprintf("endpoint %d is not ready; last station passed %s, waiting for %s", e.ID, cmp.Or(e.Passed, "none"), cmp.Or(e.Waiting, "nothing"))
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns why the wait ended.
func (e *NotReadyError) Unwrap() error { return e.Err }

// Stations returns the last station passed and the one waited for.
func (e *NotReadyError) Stations() (last, waiting regeneration.Station) { return e.Passed, e.Waiting }

// Endpoint is one attached pod.
type Endpoint struct {
	ID  uint16
	cfg Config
	log *slog.Logger

	pub    atomic.Pointer[publication]
	status *status

	alive context.Context // ends when the endpoint is disconnecting or the agent stops
	kill  context.CancelFunc

	changing chan struct{} // room for one: whose turn it is to change settings
	turns    chan *Turn
	quit     chan struct{}
	quitOnce sync.Once
	done     chan struct{} // the owner has ended
	workers  sync.WaitGroup

	own owned // of the goroutine whose turn it is
}

// owned is the mutable state beside the row.
type owned struct {
	pending   regeneration.Level // asked for while no build could be queued
	resolving bool               // a goroutine is allocating the identity
	building  bool
	buildID   identity.NumericIdentity // that the running build puts into the kernel
	buildFor  uint64                   // LabelRevision of its labels
	held      map[identity.NumericIdentity]labels.LabelArray
	extra     recordExtra // unknown fields of the record
	gone      bool        // the record was removed and must not come back
	retry     bool        // the last write of the record failed
}

// publication is a row and the channel that is closed when the next one is there.
type publication struct {
	row  *Row
	next chan struct{}
}

// New starts an endpoint in waiting-for-identity and writes its record. The row
// needs ID, Link and Pod; nothing of it is in the kernel yet.
func New(cfg Config, row Row) (*Endpoint, error) {
	row.State, row.Created, row.BootID = regeneration.StateWaitingForIdentity, time.Now(), cfg.BootID
	row.Reason = "labels are not known yet"
	e := newEndpoint(cfg, row, nil)
	if err := writeRecord(cfg.StateDir, recordOf(&row, nil)); err != nil {
		return nil, err
	}
	e.start()
	return e, nil
}

func newEndpoint(cfg Config, row Row, extra recordExtra) *Endpoint {
	e := &Endpoint{
		ID: row.ID, cfg: cfg, log: newLogger(cfg.Logger, row.ID, row.Pod),
		status: newStatus(), turns: make(chan *Turn), changing: make(chan struct{}, 1),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	e.alive, e.kill = context.WithCancel(context.Background())
	e.own.held = map[identity.NumericIdentity]labels.LabelArray{}
	e.own.extra = extra
	row.Seq = 1
	e.pub.Store(&publication{row: &row, next: make(chan struct{})})
	return e
}

func (e *Endpoint) start() {
	if e.cfg.Observe != nil {
		e.cfg.Observe(nil, e.Row())
	}
	e.workers.Add(1)
	go e.owner()
}

// Row returns the current snapshot. It never blocks.
func (e *Endpoint) Row() *Row { return e.pub.Load().row }

// Alive ends when the endpoint starts to disconnect, or the agent stops.
func (e *Endpoint) Alive() context.Context { return e.alive }

// Close ends the endpoint's goroutines without touching the kernel or the
// record, as a stopping agent does.
func (e *Endpoint) Close() {
	e.kill()
	e.quitOnce.Do(func() { close(e.quit) })
	e.workers.Wait()
}

// Wait blocks until the condition holds for the row, and returns that row. It
// fails with the context's error, or with ErrNotAlive once the endpoint's owner
// has ended.
func (e *Endpoint) Wait(ctx context.Context, cond func(*Row) bool) (*Row, error) {
	for {
		p := e.pub.Load()
		if cond(p.row) {
			return p.row, nil
		}
		select {
		case <-p.next:
		case <-ctx.Done():
			return p.row, ctx.Err()
		case <-e.done:
			if row := e.Row(); cond(row) {
				return row, nil
			}
			return e.Row(), e.notAlive()
		}
	}
}

// WaitReady blocks until the endpoint has been ready once, with the labels and
// the policy that it had when it was asked or newer ones: where they change all
// the time, there may be no moment at which it is up to date. The error is a
// NotReadyError.
func (e *Endpoint) WaitReady(ctx context.Context) error {
	asked := e.Row()
	row, err := e.Wait(ctx, func(r *Row) bool { return r.readyFor(asked) || !r.State.Alive() })
	if err == nil && row.readyFor(asked) {
		return nil
	}
	if err == nil {
		err = e.notAlive()
	}
	passed, waiting := e.Progress()
	if waiting == "" {
		waiting = passed.Next()
	}
	return &NotReadyError{ID: e.ID, Passed: passed, Waiting: waiting, Reason: row.Reason, Err: err}
}

func (e *Endpoint) notAlive() error {
	return &NotAliveError{ID: e.ID, State: e.Row().State}
}

// owner is the goroutine that owns the mutable state: it lends it to one turn
// at a time, publishes the result and keeps the record on disk equal to it.
func (e *Endpoint) owner() {
	defer e.workers.Done()
	defer close(e.done)
	again := time.NewTimer(time.Hour)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case t := <-e.turns:
			old := e.Row()
			e.lend(t)
			if e.own.retry || recordDiffers(old, e.Row()) {
				e.persist()
			}
		case <-again.C:
			e.persist()
		case <-e.quit:
			return
		}
		if e.own.retry {
			again.Reset(time.Second)
		}
		if e.Row().State.Terminal() {
			return
		}
	}
}

// lend grants a turn, waits for its end and publishes what it changed.
func (e *Endpoint) lend(t *Turn) {
	old := e.Row()
	t.Row = new(Row)
	*t.Row = *old
	t.state, t.reason = old.State, old.Reason
	close(t.granted)
	<-t.released
	defer close(t.published)
	t.Row.State = t.state
	if t.Row.same(old) {
		return
	}
	t.Row.Seq++
	p := e.pub.Load()
	e.pub.Store(&publication{row: t.Row, next: make(chan struct{})})
	close(p.next)
	if e.cfg.Observe != nil {
		e.cfg.Observe(old, t.Row)
	}
}

// persist writes the record. A failure is kept in the status log and retried.
func (e *Endpoint) persist() {
	if e.own.gone {
		e.own.retry = false
		return
	}
	err := writeRecord(e.cfg.StateDir, recordOf(e.Row(), e.own.extra))
	if err != nil && !e.own.retry {
		e.Note(TopicOther, SeverityFailure, "record not written, will be retried: %v", err)
		e.log.Warn("Endpoint record not written; retrying every second", LogError, err)
	}
	e.own.retry = err != nil
}
