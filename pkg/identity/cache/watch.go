package cache

import (
	"cmp"
	"context"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// Change is an identity that got its first user or lost its last.
type Change struct {
	ID     identity.NumericIdentity
	Labels labels.LabelArray
	Gone   bool
}

// Watcher receives changes. Its queue is as long as its reader is late.
type Watcher struct {
	c     *Cache
	queue []Change      // guarded by c.mu
	ready chan struct{} // holds one token while the queue may be not empty
}

// Watch starts with the identities in use now, ordered by number, and goes on
// with every change in the order in which they happened. Reserved identities
// never change and are left out.
func (c *Cache) Watch() *Watcher {
	w := &Watcher{c: c, ready: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.byID {
		if e.refs > 0 {
			w.queue = append(w.queue, Change{ID: e.id, Labels: e.array})
		}
	}
	slices.SortFunc(w.queue, func(a, b Change) int { return cmp.Compare(a.ID, b.ID) })
	if len(w.queue) > 0 {
		w.ready <- struct{}{}
	}
	c.watchers[w] = struct{}{}
	return w
}

// Next waits for changes and returns all there are. It fails only with ctx.
func (w *Watcher) Next(ctx context.Context) ([]Change, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.ready:
		}
		w.c.mu.Lock()
		out := w.queue
		w.queue = nil
		w.c.mu.Unlock()
		if len(out) > 0 {
			return out, nil
		}
	}
}

// Close ends the watch.
func (w *Watcher) Close() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	delete(w.c.watchers, w)
}

// notify queues a change for every watcher. c.mu is held.
func (c *Cache) notify(ch Change) {
	for w := range c.watchers {
		w.queue = append(w.queue, ch)
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}
