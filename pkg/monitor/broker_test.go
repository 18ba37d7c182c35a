package monitor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func numbered(n int) Event { return Event{Type: Drop, Length: uint32(n)} }

func next(t interface {
	Fatal(...any)
	Helper()
}, s *Subscription) Event {
	t.Helper()
	e, err := s.Next(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestEverySubscriberGetsEveryEvent(t *testing.T) {
	var b Broker
	b.Publish(numbered(1)) // nobody listens
	all, some := b.Subscribe(10), b.Subscribe(10)
	b.Publish(numbered(2))
	b.Publish(Event{Type: Verdict, Length: 3})
	for _, s := range []*Subscription{all, some} {
		if a, c := next(t, s), next(t, s); a.Length != 2 || c.Length != 3 {
			t.Errorf("got %+v, %+v", a, c)
		}
	}
	some.Close()
	some.Close()
	if b.Subscribers() != 1 {
		t.Errorf("%d subscribers", b.Subscribers())
	}
	b.Publish(Event{Type: Verdict})
	if _, err := some.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("closed, but %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all.Close()
	if e := next(t, all); e.Type != Verdict { // queued before the end
		t.Errorf("got %+v", e)
	}
	open := b.Subscribe(2)
	defer open.Close()
	if _, err := open.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the context ended, but %v", err)
	}
}

func TestLossIsToldWhereEventsAreMissing(t *testing.T) {
	var b Broker
	s := b.Subscribe(3)
	defer s.Close()
	for i := range 10 {
		b.Publish(numbered(i))
	}
	for i := range 3 {
		if e := next(t, s); e.Length != uint32(i) {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
	if e := next(t, s); e.Type != Lost || e.Lost != 7 {
		t.Fatalf("no event came after the loss, and the notice is %+v", e)
	}
	for i := range 4 { // the fourth is lost
		b.Publish(numbered(20 + i))
	}
	next(t, s)
	next(t, s)
	b.Publish(numbered(30)) // room for the notice and for this
	for _, want := range []Event{numbered(22), {Type: Lost, Lost: 1}, numbered(30)} {
		if e := next(t, s); e != want {
			t.Errorf("got %+v, want %+v", e, want)
		}
	}
}

func TestWhatIsReadAndWhatIsToldAsLostMakeTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Broker
		s := b.Subscribe(rapid.IntRange(0, 5).Draw(t, "queue"))
		defer s.Close()
		position := 0 // the number of the next event, counted by the reader
		read := func() {
			e := next(t, s)
			if e.Type == Lost {
				position += int(e.Lost)
				return
			}
			if int(e.Length) != position {
				t.Fatalf("event %d came at position %d", e.Length, position)
			}
			position++
		}
		sent := 0
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "publish") || position == sent {
				b.Publish(numbered(sent))
				sent++
			} else {
				read()
			}
		}
		for position < sent {
			read()
		}
	})
}

func TestAStuckReaderDelaysNobody(t *testing.T) {
	var b Broker
	stuck := b.Subscribe(2)
	defer stuck.Close()
	const n, publishers = 2000, 4
	reader := b.Subscribe(64)
	defer reader.Close()
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for i := range n {
				b.Publish(numbered(i))
			}
		})
	}
	wg.Go(func() {
		for range 200 {
			b.Subscribe(4).Close()
		}
	})
	for seen := uint64(0); seen < n*publishers; {
		e := next(t, reader)
		seen += max(1, e.Lost)
	}
	wg.Wait()
	next(t, stuck)
	next(t, stuck)
	if e := next(t, stuck); e.Lost != n*publishers-2 {
		t.Errorf("the stuck reader is told of %+v", e)
	}
}

// fakeRing hands out fixed records and then waits.
type fakeRing struct {
	records [][]byte
	err     error
}

func (r fakeRing) Run(ctx context.Context, fn func([]byte)) error {
	for _, b := range r.records {
		fn(b)
	}
	if r.err == nil {
		<-ctx.Done()
	}
	return r.err
}

type fakeLosses struct {
	n   uint64
	err error
}

func (l *fakeLosses) LostEvents() (uint64, error) { return l.n, l.err }

func TestTheSourceDecodesAndPassesOverRubbish(t *testing.T) {
	good := encodeRecord(t, sample())
	got := make(chan Event, 8)
	s := NewSource(fakeRing{records: [][]byte{good, {1, 2}, good}}, &fakeLosses{}, &fakeShares{}, func(e Event) { got <- e }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for range 2 {
		if e := <-got; e.Rule != 17 || e.Time.After(time.Now().Add(24*time.Hour)) {
			t.Errorf("got %+v", e)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end of the context is no failure: %v", err)
	}
	if s.Malformed() != 1 {
		t.Errorf("%d malformed records, want 1", s.Malformed())
	}
}

type fakeShares struct {
	leftOut map[uint16]uint64
	err     error
}

func (s *fakeShares) LeftOut() (map[uint16]uint64, error) { return s.leftOut, s.err }

func TestN54TheSourceTellsWhatAnEndpointLeftOut(t *testing.T) {
	var got []Event
	shares := &fakeShares{leftOut: map[uint16]uint64{7: 100}}
	s := NewSource(fakeRing{}, &fakeLosses{}, shares, func(e Event) { got = append(got, e) }, slog.New(slog.DiscardHandler))
	last := s.tellLeftOut(map[uint16]uint64{7: 100}) // of a former life
	shares.leftOut = map[uint16]uint64{7: 150, 9: 3}
	last = s.tellLeftOut(last)
	shares.err = errors.New("gone")
	if last = s.tellLeftOut(last); last[7] != 150 || len(got) != 2 {
		t.Fatalf("told %+v, the counters are at %v", got, last)
	}
	for _, e := range got {
		if e.Type != Lost || e.Lost != map[uint16]uint64{7: 50, 9: 3}[e.Endpoint] {
			t.Errorf("told %+v", e)
		}
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("counters that cannot be read at the start are a failure")
	}
}

func TestTheSourceTellsOfLossesAndFailures(t *testing.T) {
	var got []Event
	l := &fakeLosses{n: 10}
	broken := errors.New("ring is broken")
	s := NewSource(fakeRing{err: broken}, l, &fakeShares{}, func(e Event) { got = append(got, e) }, slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("the ring failed, but %v", err)
	}
	last := s.tellLosses(10)
	l.n = 14
	last = s.tellLosses(last)
	l.err = errors.New("gone")
	if last = s.tellLosses(last); last != 14 || len(got) != 1 || got[0].Type != Lost || got[0].Lost != 4 {
		t.Errorf("told %+v, the counter is at %d", got, last)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("a counter that cannot be read at the start is a failure")
	}
}
