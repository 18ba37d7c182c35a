package orchestrator

import (
	"context"
	"sync"
)

// compilationLock is a lock of many readers (builds of endpoints) or one writer
// (base initialisation), like sync.RWMutex: a waiting writer keeps new readers
// out. Unlike it, waiting ends with the context, so that an endpoint which is
// deleted does not wait for an initialisation. The zero value is unlocked.
//
// It is held across compiles and loads, which no other lock of the project is:
// during base initialisation no endpoint may be built from what is being
// replaced.
type compilationLock struct {
	mu      sync.Mutex // guards what follows; never held while waiting
	readers int
	writing bool
	writers int           // waiting
	changed chan struct{} // closed at the next change; nil if nobody waits
}

// RLock takes the lock for a build. The error is ctx's.
func (l *compilationLock) RLock(ctx context.Context) error {
	return l.acquire(ctx, func() bool {
		if l.writing || l.writers > 0 {
			return false
		}
		l.readers++
		return true
	})
}

// RUnlock gives a build's share back.
func (l *compilationLock) RUnlock() { l.release(func() { l.readers-- }) }

// Lock takes the lock for base initialisation. The error is ctx's.
func (l *compilationLock) Lock(ctx context.Context) error {
	l.release(func() { l.writers++ })
	defer l.release(func() { l.writers-- })
	return l.acquire(ctx, func() bool {
		if l.writing || l.readers > 0 {
			return false
		}
		l.writing = true
		return true
	})
}

// Unlock ends base initialisation.
func (l *compilationLock) Unlock() { l.release(func() { l.writing = false }) }

// acquire calls try under mu, now and after every change, until it succeeds or
// ctx ends.
func (l *compilationLock) acquire(ctx context.Context, try func() bool) error {
	for {
		l.mu.Lock()
		if err := ctx.Err(); err != nil {
			l.mu.Unlock()
			return err
		}
		if try() {
			l.mu.Unlock()
			return nil
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// release changes the state and wakes all that wait.
func (l *compilationLock) release(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
