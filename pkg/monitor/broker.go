package monitor

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("the subscription is closed")

// minQueue is the least useful queue: one event and the notice before it.
const minQueue = 2

// Broker gives events to subscribers. The zero value is ready.
type Broker struct {
	mu   sync.RWMutex
	subs map[*Subscription]struct{}
}

// Subscribe starts to collect the events, at most queue of them (2 or more) until
// Next takes them. The caller must call Close.
func (b *Broker) Subscribe(queue int) *Subscription {
	s := &Subscription{broker: b, queue: make(chan Event, max(queue, minQueue)), closed: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs == nil {
		b.subs = map[*Subscription]struct{}{}
	}
	b.subs[s] = struct{}{}
	return s
}

// Publish gives e to every subscriber and never waits for one.
func (b *Broker) Publish(e Event) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for s := range b.subs {
		s.push(e)
	}
}

// Subscribers is the number of subscriptions that are not closed.
func (b *Broker) Subscribers() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.subs)
}

// Subscription is one reader's queue.
type Subscription struct {
	broker *Broker
	queue  chan Event
	closed chan struct{}
	once   sync.Once

	mu     sync.Mutex // held to push; then the queue can only get shorter
	missed uint64     // since the last notice
	at     time.Time  // of the last missed event
}

// push queues e, after a notice of what was missed before it, or counts it as missed.
func (s *Subscription) push(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := cap(s.queue) - len(s.queue)
	if s.missed > 0 && room >= minQueue {
		s.queue <- s.takeNotice()
		room--
	}
	if s.missed > 0 || room == 0 {
		// A notice of lost events that finds no room adds to the count.
		s.missed += max(1, e.Lost)
		s.at = e.Time
		return
	}
	s.queue <- e
}

// takeNotice makes an event of the count. Locked.
func (s *Subscription) takeNotice() Event {
	e := Event{Type: Lost, Lost: s.missed, Time: s.at}
	s.missed = 0
	return e
}

// Next returns the next event, or an error once ctx ends or Close is called.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	select {
	case e := <-s.queue:
		return e, nil
	default:
	}
	if e, ok := s.lastNotice(); ok {
		return e, nil
	}
	select {
	case e := <-s.queue:
		return e, nil
	case <-s.closed:
		return Event{}, ErrClosed
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// lastNotice tells what was missed after the last queued event, once that has
// been taken: no later event may come to carry the notice.
func (s *Subscription) lastNotice() (Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missed == 0 || len(s.queue) > 0 {
		return Event{}, false
	}
	return s.takeNotice(), true
}

// Close ends the subscription; Next returns what is queued and then ErrClosed.
func (s *Subscription) Close() {
	s.once.Do(func() {
		s.broker.mu.Lock()
		delete(s.broker.subs, s)
		s.broker.mu.Unlock()
		close(s.closed)
	})
}
