package policy

import (
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Match is a line that would match a connection if it were the only one.
type Match struct {
	Ref     types.RuleRef
	Tier    types.Tier // of a rule
	Entry   types.Entry
	Key     types.Key
	Skipped bool // a stronger rule of the tier passed
}

// Matching returns everything that matches a connection in a direction, before
// folding: every rule once, then the local node and the default of the
// direction. The first one decides; the others follow, strongest first. prefixID
// is 0 if the peer's address has no prefix identity.
func (sp *SelectorPolicy) Matching(x *Index, dir types.Direction, id, prefixID identity.NumericIdentity, proto wtypes.Proto, dport uint16) []Match {
	d := sp.Direction(dir)
	var out []Match
	packet := portKey{proto, dport, 16}
	for i := range d.Rules {
		r := &d.Rules[i]
		if k, e, ok := r.match(x, dir, id, prefixID, packet); ok {
			out = append(out, Match{Ref: r.Ref, Tier: r.Tier, Entry: e, Key: k})
		}
	}
	if n := d.LocalNode; n != nil && id == identity.ReservedHost {
		out = append(out, Match{Ref: n.Ref, Key: types.Key{Identity: id, Direction: dir},
			Entry: types.Entry{Precedence: types.ImplicitPrecedence, Rule: n.ID, Verdict: n.Verdict}})
	}
	out = append(out, Match{Ref: d.Default.Ref, Key: types.Key{Direction: dir},
		Entry: types.Entry{Precedence: types.DefaultPrecedence, Rule: d.Default.ID, Verdict: d.Default.Verdict}})
	slices.SortStableFunc(out, func(a, b Match) int {
		switch {
		case a.Entry.Beats(b.Entry):
			return -1
		case b.Entry.Beats(a.Entry):
			return 1
		}
		return 0
	})
	return decidingFirst(out)
}

// decidingFirst finds out what passes leave of matches that are sorted.
func decidingFirst(sorted []Match) []Match {
	stage := types.StageAll
	for i, m := range sorted {
		isRule := m.Entry.Precedence > types.ImplicitPrecedence
		switch {
		case isRule && !stage.Holds(m.Tier):
			sorted[i].Skipped = true
		case m.Entry.Verdict == types.Pass:
			stage = m.Entry.Next
		default: // at the latest the direction's default
			copy(sorted[1:i+1], sorted[:i])
			sorted[0] = m
			return sorted
		}
	}
	return sorted
}

// match returns the first line of the rule that covers the packet.
func (r *ResolvedRule) match(x *Index, dir types.Direction, id, prefixID identity.NumericIdentity, packet portKey) (key types.Key, e types.Entry, found bool) {
	for _, plane := range []identity.NumericIdentity{0, id, prefixID} {
		if plane == 0 && !r.anybody() || plane != 0 && !r.selects(x, plane) {
			continue
		}
		for _, p := range r.ports {
			if p.covers(packet) {
				return p.key(plane, view{dir: dir}), r.entry(), true
			}
		}
	}
	for _, name := range r.named {
		if name.Proto != packet.proto {
			continue
		}
		for _, peer := range peersOf(&r.Rule) {
			x.eachNamedAt(peer, name, []identity.NumericIdentity{id, prefixID}, func(at identity.NumericIdentity, number uint16, exact bool) {
				if number != packet.port || at != id && at != prefixID {
					return
				}
				if line, ok := r.namedEntry(exact); ok && (!found || exact && e.Verdict != r.Verdict) {
					key, e, found = packet.key(at, view{dir: dir}), line, true
				}
			})
		}
	}
	return key, e, found
}

// selects reports whether one of the rule's peers that are no wildcards selects the identity.
func (r *ResolvedRule) selects(x *Index, id identity.NumericIdentity) bool {
	k := x.get(id)
	return k != nil && slices.ContainsFunc(r.Peers, func(p types.Peer) bool { return !IsWildcard(p) && k.matches(p) })
}
