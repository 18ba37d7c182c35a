package endpoint

import (
	"fmt"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// statusSize is how many entries the status log keeps; the oldest goes first.
const statusSize = 256

// Topic says what a status entry is about.
type Topic string

// The topics of status entries.
const (
	TopicState  Topic = "state"
	TopicPolicy Topic = "policy"
	TopicBPF    Topic = "bpf"
	TopicOther  Topic = "other"
)

// Severity says how bad a status entry is.
type Severity string

// The severities of status entries.
const (
	SeverityOK      Severity = "ok"
	SeverityWarning Severity = "warning"
	SeverityFailure Severity = "failure"
)

// StatusEntry is one line of an endpoint's status log.
type StatusEntry struct {
	Time     time.Time
	Topic    Topic
	Severity Severity
	State    regeneration.State // at the time of the entry
	Message  string
}

// Passage is one pass through a station.
type Passage struct {
	Station  regeneration.Station
	Start    time.Time
	Duration time.Duration // 0 while the station is still being passed
	Done     bool
	Reason   string // why the step was needed; empty where it always is
	Error    string // empty: passed
}

// status keeps what happened to an endpoint. Its lock is a leaf: nothing is
// called while it is held.
type status struct {
	mu       sync.Mutex
	ring     []StatusEntry
	next     int // where the next entry goes once the ring is full
	timeline map[regeneration.Station]Passage
}

func newStatus() *status { return &status{timeline: map[regeneration.Station]Passage{}} }

func (s *status) add(e StatusEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring) < statusSize {
		s.ring = append(s.ring, e)
		return
	}
	s.ring[s.next] = e
	s.next = (s.next + 1) % statusSize
}

// log returns the entries, oldest first.
func (s *status) log() []StatusEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]StatusEntry, 0, len(s.ring))
	out = append(out, s.ring[s.next:]...)
	return append(out, s.ring[:s.next]...)
}

func (s *status) set(p Passage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeline[p.Station] = p
}

// Note adds an entry to the endpoint's status log.
func (e *Endpoint) Note(topic Topic, sev Severity, format string, args ...any) {
	e.status.add(StatusEntry{
		Time: time.Now(), Topic: topic, Severity: sev,
		State: e.Row().State, Message: fmt.Sprintf(format, args...),
	})
}

// StatusLog returns the newest entries, at most 256, oldest first.
func (e *Endpoint) StatusLog() []StatusEntry { return e.status.log() }

// Enter records that a station is being passed, and why. The returned function
// records the end; a nil error means passed.
func (e *Endpoint) Enter(station regeneration.Station, reason string) (leave func(error)) {
	p := Passage{Station: station, Start: time.Now(), Reason: reason}
	e.status.set(p)
	return func(err error) {
		p.Done, p.Duration = true, time.Since(p.Start)
		log := e.Logger(station)
		if err != nil {
			p.Error = err.Error()
			log.Warn("Station failed", LogError, err, "duration", p.Duration)
		} else {
			log.Debug("Station passed", "duration", p.Duration, "reason", reason)
		}
		e.status.set(p)
	}
}

// Timeline returns the last pass of every station that was reached, in the
// order of the stations.
func (e *Endpoint) Timeline() []Passage {
	e.status.mu.Lock()
	defer e.status.mu.Unlock()
	var out []Passage
	for _, s := range regeneration.Stations() {
		if p, ok := e.status.timeline[s]; ok {
			out = append(out, p)
		}
	}
	return out
}

// Progress names the last station that was passed and the one that is being
// passed or that failed; either may be empty.
func (e *Endpoint) Progress() (passed, waiting regeneration.Station) {
	for _, p := range e.Timeline() {
		if p.Done && p.Error == "" {
			passed = p.Station
		} else if waiting == "" {
			waiting = p.Station
		}
	}
	return passed, waiting
}

// Health is the short answer to "is this endpoint all right?".
type Health struct {
	OK        bool
	Connected bool   // exposed: packets can reach the pod
	Policy    string // "ok", "behind", "degraded" or "none"
	Programs  string // "ok", "former" or "none"
	Reason    string // why OK is false
}

// Health judges the row.
func (r *Row) Health() Health {
	h := Health{Connected: r.Built() || r.Restored, Policy: "ok", Programs: "ok", Reason: r.Reason}
	switch {
	case !h.Connected:
		h.Policy, h.Programs = "none", "none"
	case r.Degraded != "":
		h.Policy, h.Reason = "degraded", r.Degraded
	case !r.InSync():
		h.Policy = "behind"
	}
	if h.Connected && r.Refused != "" {
		h.Programs = "former"
	}
	h.OK = r.State == regeneration.StateReady && h.Policy == "ok"
	if !h.OK && h.Reason == "" {
		h.Reason = "state is " + string(r.State)
	}
	return h
}

func stateEntry(to regeneration.State, reason string) StatusEntry {
	msg := "now " + string(to)
	if reason != "" {
		msg += ": " + reason
	}
	return StatusEntry{Time: time.Now(), Topic: TopicState, Severity: SeverityOK, State: to, Message: msg}
}
