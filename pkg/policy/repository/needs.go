package repository

import (
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// needs is what the answers of each label set depend on, by needKey. The policies,
// the labels and the endpoint's own mode alone decide that: pods that differ in
// named ports share it.
type needs map[string]*need

func needKey(s policy.Subject) string { return s.Enforcement.String() + " " + s.Labels.Key() }

// need is immutable but for its identity, policies and answers.
type need struct {
	labelKey string
	identity identity.NumericIdentity
	labels   labels.LabelArray
	policies uint64          // that the answers were found from: state.policies
	peers    []types.Peer    // whose matches the index keeps
	keys     map[string]bool // of the peers; true: of a rule with named ports of the destination
	names    map[types.NamedPort]bool
	rules    []types.RuleID
	answers  map[string]*answer // by subjectKey
}

// register keeps what the subject's answer depends on, and returns the peers that
// the index has to follow from now on and those that it need not any more.
func (n needs) register(s policy.Subject, policies uint64, sp *policy.SelectorPolicy) (selected, unselected []types.Peer) {
	key := needKey(s)
	old := n[key]
	if old != nil && old.policies == policies {
		old.identity = s.Identity
		old.answers[subjectKey(s)] = &answer{policy: sp}
		return nil, nil
	}
	now := &need{labelKey: s.Labels.Key(), identity: s.Identity, labels: s.Labels, policies: policies, keys: map[string]bool{},
		names: map[types.NamedPort]bool{}, rules: ruleIDs(sp), answers: map[string]*answer{subjectKey(s): {policy: sp}}}
	for p, named := range sp.Peers() {
		now.peers = append(now.peers, p)
		now.keys[policy.PeerKey(p)] = now.keys[policy.PeerKey(p)] || named
	}
	for _, name := range sp.NamedPorts() {
		now.names[name] = true
	}
	n[key] = now
	if old != nil {
		unselected = old.peers
	}
	return now.peers, unselected
}

// answer returns what is kept of a subject if the policies are the same, else nil.
func (n needs) answer(s policy.Subject, policies uint64) *answer {
	if old := n[needKey(s)]; old != nil && old.policies == policies {
		return old.answers[subjectKey(s)]
	}
	return nil
}

// keep lets the answers stand that a change of policies does not concern.
func (n needs) keep(concerned []*types.Policy, before, policies uint64) {
	for _, need := range n {
		if need.policies == before && !slices.ContainsFunc(concerned, func(p *types.Policy) bool { return p.Subject.Matches(need.labels) }) {
			need.policies = policies
		}
	}
}

// affected notes a change of the index, and says which label sets it concerns:
// those whose answers depend on it in any mode, and those that nothing is known of.
func (n needs) affected(ch policy.Changes, revision uint64) func(labels.LabelArray) bool {
	hit := make(map[string]bool, len(n))
	for _, need := range n {
		hit[need.labelKey] = need.note(ch, revision) || hit[need.labelKey]
	}
	return func(a labels.LabelArray) bool {
		concerned, known := hit[a.Key()]
		return concerned || !known
	}
}

// note tells the answers of a change; false: they do not depend on it.
func (n *need) note(ch policy.Changes, revision uint64) (concerned bool) {
	for key, delta := range ch.Selectors {
		named, needed := n.keys[key]
		if !needed {
			continue
		}
		concerned = true
		for _, a := range n.answers {
			a.note(delta, named, revision)
		}
	}
	for name := range ch.NamedPorts {
		if !n.names[name] {
			continue
		}
		concerned = true
		for _, a := range n.answers {
			a.renewed = revision
		}
	}
	return concerned
}

// forget drops identities that go, and returns the peers that they depended on.
// A number goes after its last subject; one that x does not know was resolved
// once more after it had gone.
func (n needs) forget(x *policy.Index, removed identity.IdentityMap) (unselected []types.Peer) {
	if len(removed) == 0 {
		return nil
	}
	for key, need := range n {
		_, goes := removed[need.identity]
		if _, known := x.Labels(need.identity); goes || !known {
			delete(n, key)
			unselected = append(unselected, need.peers...)
		}
	}
	return unselected
}

// rules are the numbers of all rules that an answer depends on.
func (n needs) rules() map[types.RuleID]bool {
	out := map[types.RuleID]bool{}
	for _, need := range n {
		for _, id := range need.rules {
			out[id] = true
		}
	}
	return out
}
