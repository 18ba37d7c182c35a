package endpointmanager

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// EventKind says what happened to an endpoint.
type EventKind string

// The kinds of events.
const (
	EventCreated EventKind = "created" // also restored
	EventState   EventKind = "state"   // the state changed, and perhaps more
	EventChanged EventKind = "changed" // something else in the row changed
	EventDeleted EventKind = "deleted"
)

// Event is one change. Rows are immutable.
type Event struct {
	Kind EventKind
	Old  *endpoint.Row // nil for EventCreated
	New  *endpoint.Row // for EventDeleted the last row
}

// Subscription receives the events of all endpoints. For one endpoint they come
// in order.
type Subscription struct {
	C    <-chan Event
	lost atomic.Uint64
}

// Lost returns how many events did not fit into the queue. A reader that sees it
// grow reads Manager.Rows again.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// observers is the list of those who want to know.
type observers struct {
	mu    sync.Mutex
	funcs []func(Event)
	subs  map[*Subscription]chan Event
}

// Observe calls f for every event, from the goroutine that owns the endpoint: f
// must not block and must not take a turn of an endpoint. Call it before the
// first endpoint exists.
func (m *Manager) Observe(f func(Event)) {
	m.obs.mu.Lock()
	defer m.obs.mu.Unlock()
	m.obs.funcs = append(m.obs.funcs, f)
}

// Subscribe queues events, up to size, until the context ends; then the channel
// is closed.
func (m *Manager) Subscribe(ctx context.Context, size int) *Subscription {
	c := make(chan Event, max(size, 1))
	s := &Subscription{C: c}
	m.obs.mu.Lock()
	defer m.obs.mu.Unlock()
	if m.obs.subs == nil {
		m.obs.subs = map[*Subscription]chan Event{}
	}
	m.obs.subs[s] = c
	context.AfterFunc(ctx, func() {
		m.obs.mu.Lock()
		defer m.obs.mu.Unlock()
		delete(m.obs.subs, s)
		close(c)
	})
	return s
}

// tell passes a change of one row on.
func (o *observers) tell(old, new *endpoint.Row) {
	ev := Event{Kind: EventChanged, Old: old, New: new}
	switch {
	case old == nil:
		ev.Kind = EventCreated
	case new.State == regeneration.StateDisconnected:
		ev.Kind = EventDeleted
	case old.State != new.State:
		ev.Kind = EventState
	}
	o.mu.Lock()
	funcs := o.funcs
	for s, c := range o.subs {
		select {
		case c <- ev:
		default:
			s.lost.Add(1)
		}
	}
	o.mu.Unlock()
	for _, f := range funcs {
		f(ev)
	}
}
