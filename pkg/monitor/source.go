package monitor

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirnet/weir/pkg/bpf"
)

// tick is how often losses are looked at and the wall clock is compared.
const tick = time.Second

// ring hands out the records of the data plane; maps/eventsmap is one.
type ring interface {
	// Run calls fn with every record until ctx ends, and returns nil then.
	Run(ctx context.Context, fn func([]byte)) error
}

// losses counts the records that found no room; maps/metricsmap is one.
type losses interface {
	LostEvents() (uint64, error)
}

// shares counts the events that an endpoint's programs left out, because it told of
// more than its share; maps/eventsmap is one.
type shares interface {
	LeftOut() (map[uint16]uint64, error)
}

// Source reads the ring for as long as the agent runs.
type Source struct {
	ring      ring
	losses    losses
	shares    shares
	publish   func(Event)
	logger    *slog.Logger
	malformed atomic.Uint64
	booted    atomic.Pointer[time.Time]
}

// NewSource makes a source that gives every event to publish, which must not wait.
func NewSource(r ring, l losses, s shares, publish func(Event), logger *slog.Logger) *Source {
	return &Source{ring: r, losses: l, shares: s, publish: publish, logger: logger}
}

// Malformed is the number of records that could not be decoded.
func (s *Source) Malformed() uint64 { return s.malformed.Load() }

// Run reads until ctx ends and returns nil then, or the failure of the ring.
func (s *Source) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	s.setClock()
	last, err := s.losses.LostEvents()
	if err != nil {
		return err
	}
	leftOut, err := s.shares.LeftOut()
	if err != nil {
		return err
	}
	wg.Go(func() { s.watch(ctx, last, leftOut) })
	return s.ring.Run(ctx, s.take)
}

func (s *Source) take(record []byte) {
	e, err := Decode(record, *s.booted.Load())
	if err != nil {
		if s.malformed.Add(1) == 1 { // the others would say the same
			s.logger.Warn("an event could not be decoded", "error", err)
		}
		return
	}
	s.publish(e)
}

// watch tells of losses, and follows steps of the wall clock.
func (s *Source) watch(ctx context.Context, last uint64, leftOut map[uint16]uint64) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.setClock()
		last = s.tellLosses(last)
		leftOut = s.tellLeftOut(leftOut)
	}
}

// tellLeftOut publishes what each endpoint left out since the counters stood at
// last, and returns where they stand.
func (s *Source) tellLeftOut(last map[uint16]uint64) map[uint16]uint64 {
	now, err := s.shares.LeftOut()
	if err != nil {
		s.logger.Warn("the counters of events that endpoints left out cannot be read", "error", err)
		return last
	}
	for id, n := range now {
		if n > last[id] {
			s.publish(Event{Type: Lost, Endpoint: id, Lost: n - last[id], Time: time.Now()})
		}
	}
	return now
}

// tellLosses publishes what was lost since the counter stood at last, and
// returns where it stands.
func (s *Source) tellLosses(last uint64) uint64 {
	now, err := s.losses.LostEvents()
	if err != nil {
		s.logger.Warn("the counter of lost events cannot be read", "error", err)
		return last
	}
	if now > last {
		s.publish(Event{Type: Lost, Lost: now - last, Time: time.Now()})
	}
	return now
}

func (s *Source) setClock() {
	booted := time.Now().Add(-bpf.BootTime())
	s.booted.Store(&booted)
}
