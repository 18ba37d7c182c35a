package repository

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Resolved is the answer to Resolve.
type Resolved struct {
	Policy   *policy.SelectorPolicy
	State    policy.MapState // shared, not to be changed
	Revision uint64          // of the repository that it answers for
}

// cache keeps the last answer per subject.
type cache struct {
	mu      sync.Mutex
	entries map[string]*cached
}

// cached is the last answer for a subject. Immutable but for answer, which
// cache.mu guards.
type cached struct {
	subject  policy.Subject
	selected []types.Peer    // whose matches the index keeps for this answer
	peers    map[string]bool // their keys
	names    map[types.NamedPort]bool
	answer   Resolved
}

// Resolve computes what the policies mean for a subject. The answer of an
// earlier call is returned while nothing that it depends on has changed. It
// fails only if a rule cannot be compiled, or rule numbers cannot be kept.
func (r *Repository) Resolve(subject policy.Subject) (Resolved, error) {
	key := subjectKey(subject)
	for {
		s := r.current.Load()
		if c := r.cache.get(key); c != nil && c.Revision >= s.revision {
			return *c, nil
		}
		sp := policy.Resolve(subject, s.list, r.mode, r.rules.number)
		if err := r.rules.flush(); err != nil {
			return Resolved{}, err
		}
		now := r.selecting(key, subject, s, sp)
		if now == nil {
			continue // the policies are others by now
		}
		sp.Revision = now.revision
		state, err := sp.MapState(now.index)
		if err != nil {
			return Resolved{}, fmt.Errorf("resolving the policy of identity %d: %w", subject.Identity, err)
		}
		answer := Resolved{sp, state, now.revision}
		r.cache.put(key, answer)
		return answer, nil
	}
}

// selecting makes the index keep the matches of the subject's peers up to date,
// gives up those of its last answer, and returns the state that has them. It
// returns nil if s holds other policies than those in force: what an answer
// depends on must never be replaced by what an older one depended on, or changes
// would pass unseen.
func (r *Repository) selecting(key string, subject policy.Subject, s *state, sp *policy.SelectorPolicy) *state {
	peers, names := sp.Peers()
	c := &cached{subject: subject, selected: peers, peers: map[string]bool{}, names: map[types.NamedPort]bool{}}
	for _, p := range peers {
		c.peers[policy.PeerKey(p)] = true
	}
	for _, n := range names {
		c.names[n] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := *r.current.Load()
	if n.policies != s.policies {
		return nil
	}
	// The dependencies are registered under the lock that changes take, so that
	// a change either is in the state returned or finds them.
	before := r.cache.register(key, c)
	n.index, _ = n.index.Apply(policy.Events{Select: peers, Unselect: before})
	r.current.Store(&n)
	return &n
}

func subjectKey(s policy.Subject) string {
	ports := make([]string, 0, len(s.NamedPorts))
	for name, number := range s.NamedPorts {
		ports = append(ports, fmt.Sprintf("%s=%d", name, number))
	}
	slices.Sort(ports)
	return fmt.Sprintf("%d %s %s", s.Identity, s.Labels.Key(), strings.Join(ports, " "))
}

func (c *cache) get(key string) *Resolved {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil && e.answer.Policy != nil {
		answer := e.answer
		return &answer
	}
	return nil
}

func (c *cache) put(key string, answer Resolved) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil && e.answer.Revision <= answer.Revision {
		e.answer = answer
	}
}

// register keeps what a subject's next answer depends on, and returns the peers
// that its last one did.
func (c *cache) register(key string, e *cached) (before []types.Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]*cached{}
	}
	if old := c.entries[key]; old != nil {
		e.answer, before = old.answer, old.selected
	}
	c.entries[key] = e
	return before
}

// affected says which label sets a change of the index concerns: those whose
// answer depends on it, and those that have no answer yet.
func (c *cache) affected(ch policy.Changes) func(labels.LabelArray) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	hit, known := map[string]bool{}, map[string]bool{}
	for _, e := range c.entries {
		key := e.subject.Labels.Key()
		known[key] = true
		if e.dependsOn(ch) {
			hit[key] = true
		}
	}
	return func(a labels.LabelArray) bool {
		key := a.Key()
		return hit[key] || !known[key]
	}
}

func (e *cached) dependsOn(ch policy.Changes) bool {
	for key := range ch.Selectors {
		if e.peers[key] {
			return true
		}
	}
	for name := range ch.NamedPorts {
		if e.names[name] {
			return true
		}
	}
	return false
}

// forget drops the answers of identities that went and returns their peers.
func (c *cache) forget(removed identity.IdentityMap) (unselect []types.Peer) {
	if len(removed) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.entries {
		if _, gone := removed[e.subject.Identity]; gone {
			delete(c.entries, key)
			unselect = append(unselect, e.selected...)
		}
	}
	return unselect
}
