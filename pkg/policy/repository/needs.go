package repository

import (
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

// need is immutable but for its first three.
type need struct {
	labelKey string
	identity identity.NumericIdentity
	subject  string                 // that policy was resolved for last, by subjectKey
	policy   *policy.SelectorPolicy // without a revision
	policies uint64                 // that it was found from: state.policies
	peers    []types.Peer           // whose matches the index keeps
	keys     map[string]bool        // of the peers
	names    map[types.NamedPort]bool
	rules    []types.RuleID
}

// register keeps what the subject's answer depends on, and returns the peers that
// the index has to follow from now on and those that it need not any more.
func (n needs) register(s policy.Subject, policies uint64, sp *policy.SelectorPolicy) (selected, unselected []types.Peer) {
	key := needKey(s)
	old := n[key]
	if old != nil && old.policies == policies {
		old.identity, old.subject, old.policy = s.Identity, subjectKey(s), sp
		return nil, nil
	}
	peers, names := sp.Peers()
	now := &need{labelKey: s.Labels.Key(), identity: s.Identity, subject: subjectKey(s), policy: sp, policies: policies, peers: peers,
		keys: map[string]bool{}, names: map[types.NamedPort]bool{}, rules: ruleIDs(sp)}
	for _, p := range peers {
		now.keys[policy.PeerKey(p)] = true
	}
	for _, name := range names {
		now.names[name] = true
	}
	n[key] = now
	if old != nil {
		unselected = old.peers
	}
	return peers, unselected
}

// resolved returns the policy of a subject if it was found from the same policies.
func (n needs) resolved(s policy.Subject, policies uint64) *policy.SelectorPolicy {
	if old := n[needKey(s)]; old != nil && old.policies == policies && old.subject == subjectKey(s) {
		return old.policy
	}
	return nil
}

// affected says which label sets a change of the index concerns: those whose
// answers depend on it in any mode, and those that nothing is known of.
func (n needs) affected(ch policy.Changes) func(labels.LabelArray) bool {
	hit := make(map[string]bool, len(n))
	for _, need := range n {
		hit[need.labelKey] = need.dependsOn(ch) || hit[need.labelKey]
	}
	return func(a labels.LabelArray) bool {
		concerned, known := hit[a.Key()]
		return concerned || !known
	}
}

func (n *need) dependsOn(ch policy.Changes) bool {
	for key := range ch.Selectors {
		if n.keys[key] {
			return true
		}
	}
	for name := range ch.NamedPorts {
		if n.names[name] {
			return true
		}
	}
	return false
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
