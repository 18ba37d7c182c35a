package endpointmanager

import (
	"sync"

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

// observers is the list of those who want to know.
type observers struct {
	mu    sync.Mutex
	funcs []func(Event)
}

// Observe calls f for every event, from the goroutine that owns the endpoint: f
// must not block and must not take a turn of an endpoint. Call it before the
// first endpoint exists.
func (m *Manager) Observe(f func(Event)) {
	m.obs.mu.Lock()
	defer m.obs.mu.Unlock()
	m.obs.funcs = append(m.obs.funcs, f)
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
	o.mu.Unlock()
	for _, f := range funcs {
		f(ev)
	}
}
