package cache

import (
	"fmt"
	"time"

	"github.com/weirnet/weir/pkg/identity"
)

// space is the range of numbers of one scope.
type space struct {
	scope    identity.Scope
	min, max identity.NumericIdentity
	next     identity.NumericIdentity // where the search for a free number starts
}

func newSpaces(cfg Config) map[identity.Scope]*space {
	or := func(v, d identity.NumericIdentity) identity.NumericIdentity {
		if v == 0 {
			return d
		}
		return v
	}
	all := []*space{
		{scope: identity.ScopeGlobal, min: or(cfg.Min, identity.MinimalNumericIdentity), max: or(cfg.Max, identity.MaxNumericIdentity)},
		{scope: identity.ScopeLocal, min: or(cfg.LocalMin, identity.MinLocalIdentity), max: or(cfg.LocalMax, identity.MaxLocalIdentity)},
		{scope: identity.ScopeRemoteNode, min: identity.MinRemoteNodeIdentity, max: identity.MaxRemoteNodeIdentity},
	}
	m := make(map[identity.Scope]*space, len(all))
	for _, s := range all {
		s.next = s.min
		m[s.scope] = s
	}
	return m
}

// pick returns the next number that is not taken, round robin; false if all are.
func (s *space) pick(taken func(identity.NumericIdentity) bool) (identity.NumericIdentity, bool) {
	for range s.max - s.min + 1 {
		id := s.next
		s.next++
		if s.next > s.max {
			s.next = s.min
		}
		if !taken(id) {
			return id, true
		}
	}
	return 0, false
}

func (s *space) holds(id identity.NumericIdentity) bool { return id >= s.min && id <= s.max }

func (s *space) exhausted() error {
	return fmt.Errorf("%w in scope %s: all %d from %d to %d are in use, held for a restored set or resting; take labels with many values out of identities with the label filter",
		ErrExhausted, s.scope, s.max-s.min+1, s.min, s.max)
}

// resting are released numbers that must not be used again yet, oldest first.
type resting struct {
	until map[identity.NumericIdentity]time.Time
	queue []identity.NumericIdentity
}

func (r *resting) add(id identity.NumericIdentity, now time.Time, d time.Duration) {
	if r.until == nil {
		r.until = map[identity.NumericIdentity]time.Time{}
	}
	for len(r.queue) > 0 && !r.has(r.queue[0], now) {
		delete(r.until, r.queue[0])
		r.queue = r.queue[1:]
	}
	if _, ok := r.until[id]; !ok {
		r.queue = append(r.queue, id)
	}
	r.until[id] = now.Add(d)
}

func (r *resting) has(id identity.NumericIdentity, now time.Time) bool {
	t, ok := r.until[id]
	return ok && now.Before(t)
}
