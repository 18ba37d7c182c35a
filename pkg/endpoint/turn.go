package endpoint

import (
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
)

// Turn is the right to change an endpoint, lent by its owner. Keep it short and
// end it with Unlock.
type Turn struct {
	// Row is a private copy that is published by Unlock. Its State is set
	// through SetState only.
	Row *Row

	e      *Endpoint
	state  regeneration.State
	reason string
	after  []func() // run by Unlock, once the change is published

	granted, released, published chan struct{}
}

// LockAlive waits for the caller's turn. It fails with a NotAliveError once the
// endpoint is disconnecting.
func (e *Endpoint) LockAlive() (*Turn, error) {
	t, err := e.lock()
	if err != nil {
		return nil, err
	}
	if !t.state.Alive() {
		t.Unlock()
		return nil, e.notAlive()
	}
	return t, nil
}

// lock is LockAlive for those who also work on an endpoint that is going away.
func (e *Endpoint) lock() (*Turn, error) {
	t := &Turn{
		e: e, granted: make(chan struct{}), released: make(chan struct{}), published: make(chan struct{}),
	}
	select {
	case e.turns <- t:
		<-t.granted
		return t, nil
	case <-e.done:
		return nil, e.notAlive()
	}
}

// Update runs f in a turn.
func (e *Endpoint) Update(f func(*Turn)) error {
	t, err := e.LockAlive()
	if err != nil {
		return err
	}
	defer t.Unlock()
	f(t)
	return nil
}

// Unlock ends the turn. When it returns, Row shows the change.
func (t *Turn) Unlock() {
	t.releaseUnneeded()
	close(t.released)
	<-t.published
	for _, f := range t.after {
		f()
	}
}

// State is the state as the turn has set it so far.
func (t *Turn) State() regeneration.State { return t.state }

// SetState follows the transition table. It reports whether the state changed.
// Asking for the state that is already there, and asking a queued endpoint to
// wait again, is quietly refused; any other transition outside the table is
// also noted in the status log.
func (t *Turn) SetState(to regeneration.State, reason string) bool {
	from := t.state
	if from == to {
		return false
	}
	if !regeneration.Allowed(from, to) {
		// A build that ends while the next one is queued is no mistake.
		quiet := to == regeneration.StateReady &&
			(from == regeneration.StateWaitingToRegenerate || from == regeneration.StateWaitingForIdentity)
		if !quiet && from.Alive() {
			t.e.Note(TopicState, SeverityWarning, "refused to go from %s to %s (%s)", from, to, reason)
		}
		return false
	}
	t.state, t.Row.Reason = to, reason
	t.e.status.add(stateEntry(to, reason))
	t.e.log.Debug("State changed", LogState, string(to), "from", string(from), "reason", reason)
	if to == regeneration.StateDisconnecting {
		t.e.kill()
	}
	return true
}

// releaseUnneeded gives back identities that neither the wish, nor the kernel,
// nor a running build needs.
func (t *Turn) releaseUnneeded() {
	own := &t.e.own
	if !t.state.Alive() {
		return // a deletion releases them, as its last step
	}
	keep := map[identity.NumericIdentity]bool{t.Row.Identity: true}
	if t.Row.Realized != nil {
		keep[t.Row.Realized.Identity] = true
	}
	if own.building {
		keep[own.buildID] = true
	}
	for id, ls := range own.held {
		if keep[id] {
			continue
		}
		delete(own.held, id)
		t.after = append(t.after, func() { t.e.cfg.Identities.releaseLater(id, ls) })
	}
}
