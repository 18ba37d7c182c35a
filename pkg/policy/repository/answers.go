package repository

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
)

// manyChanged is the number of identities from which on a map state is made anew.
const manyChanged = 1024

// answer is what is kept of a subject while the policies are the same.
type answer struct {
	policy   *policy.SelectorPolicy // without a revision
	state    policy.MapState        // nil: not made yet
	revision uint64                 // that the state was made for
	// What has changed since, with the revision of the change: what the rules
	// select of these identities, or more than that.
	changed map[identity.NumericIdentity]uint64
	renewed uint64
}

// note tells of other matches of a selector. More differs if the rule is about
// named ports: those of an address may be in the plane of its prefix.
func (a *answer) note(delta policy.Delta, named bool, revision uint64) {
	if named || len(a.changed)+len(delta.Added)+len(delta.Removed) > manyChanged {
		a.renewed = revision
		return
	}
	if a.changed == nil {
		a.changed = map[identity.NumericIdentity]uint64{}
	}
	for _, id := range delta.Added {
		a.changed[id] = revision
	}
	for _, id := range delta.Removed {
		a.changed[id] = revision
	}
}

// at returns the map state for an index, which no change has been noted for
// that is not noted here.
func (a answer) at(x *policy.Index) (policy.MapState, error) {
	switch {
	case a.state == nil || a.renewed > a.revision:
		return a.policy.MapState(x)
	case len(a.changed) == 0:
		return a.state, nil
	}
	ids := make(map[identity.NumericIdentity]bool, len(a.changed))
	for id := range a.changed {
		ids[id] = true
	}
	return a.policy.Update(a.state, x, ids), nil
}

// put keeps a state unless a newer one is kept, and forgets the changes up to it.
func (a *answer) put(state policy.MapState, revision uint64) {
	if a.state != nil && revision < a.revision {
		return
	}
	a.state, a.revision = state, revision
	maps.DeleteFunc(a.changed, func(_ identity.NumericIdentity, at uint64) bool { return at <= revision })
}

// snapshot is a copy that later changes are not noted in.
func (a *answer) snapshot() answer {
	s := *a
	s.changed = maps.Clone(a.changed)
	return s
}

func subjectKey(s policy.Subject) string {
	ports := make([]string, 0, len(s.NamedPorts))
	for name, number := range s.NamedPorts {
		ports = append(ports, fmt.Sprintf("%s=%d", name, number))
	}
	slices.Sort(ports)
	return fmt.Sprintf("%d %s %s %s", s.Identity, s.Enforcement, s.Labels.Key(), strings.Join(ports, " "))
}
