package policy

import (
	"cmp"
	"errors"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// MapState is the contents of a policy map. It is folded: in one plane (an
// identity, a direction and a stage) the longest match carries the strongest of all
// entries that cover the packet, and lines that can never decide are left out.
// Once returned it may be shared and is not to be changed.
type MapState map[types.Key]types.Entry

// MapState makes the entries for the identities that the Index knows. It fails
// only for rules that no dialect should have written.
func (sp *SelectorPolicy) MapState(x *Index) (MapState, error) {
	if x == nil {
		return nil, errors.New("map state: no index of identities was given")
	}
	b := builder{index: x}
	size := 4
	for _, dir := range []types.Direction{types.Ingress, types.Egress} {
		for i := range sp.Direction(dir).Rules {
			r := &sp.Direction(dir).Rules[i]
			if err := r.validate(); err != nil {
				return nil, err
			}
			size += b.estimate(r)
		}
	}
	b.state = make(MapState, min(size, maxPresize))
	sp.eachView(func(d *DirectionPolicy, v view) {
		b.anybody(d, v)
		b.identities(d, v)
	})
	b.fold()
	return b.state, nil
}

// Update is MapState for an Index in which only what the rules select of some
// identities is another than in the one that old was made with: their planes are
// made again, the others are taken over. No other identity may have been given a
// line by named ports that changed.
func (sp *SelectorPolicy) Update(old MapState, x *Index, changed map[identity.NumericIdentity]bool) MapState {
	b := builder{index: x, state: make(MapState, len(old)), only: changed}
	for k, e := range old {
		if !changed[k.Identity] {
			b.write(k, e)
		}
	}
	sp.eachView(b.identities)
	b.fold()
	return b.state
}

// eachView calls emit with every part of a map that packets can reach.
func (sp *SelectorPolicy) eachView(emit func(*DirectionPolicy, view)) {
	for _, dir := range []types.Direction{types.Ingress, types.Egress} {
		d := sp.Direction(dir)
		for _, stage := range d.stages() {
			emit(d, view{dir, stage})
		}
	}
}

// maxPresize bounds the map made ahead: many rules write the same keys.
const maxPresize = 1 << 16

// builder collects entries; of equal keys the strongest stays.
type builder struct {
	index *Index
	state MapState
	lens  [2]uint32                         // by direction: bit n is set if a key with n port bits exists
	exact []portKey                         // scratch: ports of a rule that no stronger wildcard covers
	only  map[identity.NumericIdentity]bool // the planes to make; nil: all
}

// makes reports whether the plane of an identity is to be made.
func (b *builder) makes(id identity.NumericIdentity) bool { return b.only == nil || b.only[id] }

func (b *builder) estimate(r *ResolvedRule) int {
	ids := 0
	for _, p := range r.Peers {
		m, _ := b.index.Matches(p)
		ids += len(m)
	}
	return max(ids, 1) * max(len(r.ports), 1)
}

func (b *builder) put(k types.Key, e types.Entry) {
	if old, ok := b.state[k]; ok && !e.Beats(old) {
		return
	}
	b.write(k, e)
}

func (b *builder) write(k types.Key, e types.Entry) {
	b.state[k] = e
	b.lens[k.Direction] |= 1 << k.PortBits
}

// view is the part of a map that one lookup of a packet can reach.
type view struct {
	dir   types.Direction
	stage types.Stage
}

// stages are those that a packet can come to, the first one first.
func (d *DirectionPolicy) stages() []types.Stage {
	out := []types.Stage{types.StageAll}
	for i := range d.Rules {
		if r := &d.Rules[i]; r.Verdict == types.Pass {
			out = append(out, r.entry().Next)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// anybody writes the wildcard plane, before all others: entries of identities
// which it outdoes are never made.
func (b *builder) anybody(d *DirectionPolicy, v view) {
	b.put(portKey{}.key(0, v), types.Entry{
		Precedence: types.DefaultPrecedence, Rule: d.Default.ID, Verdict: d.Default.Verdict})
	for i := range d.Rules {
		r := &d.Rules[i]
		if !r.anybody() || !v.stage.Holds(r.Tier) {
			continue
		}
		for _, p := range r.ports {
			b.put(p.key(0, v), r.entry())
		}
	}
}

// identities writes the other planes.
func (b *builder) identities(d *DirectionPolicy, v view) {
	if n := d.LocalNode; n != nil && b.makes(identity.ReservedHost) {
		b.putUnder(identity.ReservedHost, v, portKey{}, types.Entry{
			Precedence: types.ImplicitPrecedence, Rule: n.ID, Verdict: n.Verdict})
	}
	for i := range d.Rules {
		if r := &d.Rules[i]; v.stage.Holds(r.Tier) {
			b.rule(r, v)
		}
	}
}

// rule writes a rule's entries outside the wildcard plane.
func (b *builder) rule(r *ResolvedRule, v view) {
	e := r.entry()
	if !r.anybody() && b.concerned(r) {
		b.exact = b.exact[:0]
		for _, p := range r.ports {
			if !b.outdone(p.key(0, v), e) {
				b.exact = append(b.exact, p)
			}
		}
		if len(b.exact) > 0 {
			b.eachSelected(r, func(id identity.NumericIdentity) {
				for _, p := range b.exact {
					b.put(p.key(id, v), e)
				}
			})
		}
	}
	for _, name := range r.named {
		for _, peer := range peersOf(&r.Rule) {
			b.index.eachNamed(peer, name, func(id identity.NumericIdentity, number uint16, exact bool) {
				if e, ok := r.namedEntry(exact); ok && b.makes(id) {
					b.putUnder(id, v, portKey{name.Proto, number, 16}, e)
				}
			})
		}
	}
}

// concerned reports whether the rule may select an identity whose plane is to be made.
func (b *builder) concerned(r *ResolvedRule) bool {
	for id := range b.only {
		if r.selects(b.index, id) {
			return true
		}
	}
	return b.only == nil
}

// eachSelected calls emit with the identities that the rule's peers select, of
// the planes to make; it may name one more than once.
func (b *builder) eachSelected(r *ResolvedRule, emit func(identity.NumericIdentity)) {
	for id := range b.only {
		if r.selects(b.index, id) {
			emit(id)
		}
	}
	if b.only != nil {
		return
	}
	for _, peer := range r.Peers {
		ids, _ := b.index.Matches(peer)
		for _, id := range ids {
			emit(id)
		}
	}
}

// putUnder writes an entry unless the wildcard plane outdoes it.
func (b *builder) putUnder(id identity.NumericIdentity, v view, p portKey, e types.Entry) {
	if !b.outdone(p.key(0, v), e) {
		b.put(p.key(id, v), e)
	}
}

// anybody reports whether the rule's peers include the wildcard.
func (r *ResolvedRule) anybody() bool {
	return r.Peers == nil || slices.ContainsFunc(r.Peers, IsWildcard)
}

func (k portKey) key(id identity.NumericIdentity, v view) types.Key {
	return types.Key{Identity: id, Direction: v.dir, Stage: v.stage, Proto: k.proto, Port: k.port, PortBits: k.bits}
}

// outdone reports whether k or a key of the same plane that covers it has an
// entry that decides wherever e would.
func (b *builder) outdone(k types.Key, e types.Entry) bool {
	if o, ok := b.state[k]; ok && !e.Beats(o) {
		return true
	}
	return b.outdoneAbove(k, e)
}

func (b *builder) outdoneAbove(k types.Key, e types.Entry) bool {
	if k.Proto == wtypes.ProtoAny {
		return false
	}
	lens := b.lens[k.Direction]
	for n := int(k.PortBits) - 1; n >= 0; n-- {
		if lens&(1<<n) == 0 {
			continue
		}
		k.PortBits, k.Port = uint8(n), k.Port&portMask(uint8(n))
		if o, ok := b.state[k]; ok && !e.Beats(o) {
			return true
		}
	}
	o, ok := b.state[types.Key{Identity: k.Identity, Direction: k.Direction, Stage: k.Stage}]
	return ok && !e.Beats(o)
}

// fold removes every line that a wider line of its plane outdoes. Without them
// the longest match left is the strongest that covers: a line stays only if it
// beats all that are wider. Removing one never hides another, because what
// outdoes it outdoes all that it could have outdone.
func (b *builder) fold() {
	for k, e := range b.state {
		if b.makes(k.Identity) && b.outdoneAbove(k, e) {
			delete(b.state, k)
		}
	}
}

// Decide judges a connection as the kernel does: the longest match in the planes
// of the identity, of the prefix identity (unless 0 or the same) and of the
// wildcard, and the strongest of the three; if that one passes, the same again
// in the stage that it names. Nothing found is a deny by rule 0.
func (m MapState) Decide(dir types.Direction, id, prefixID identity.NumericIdentity, proto wtypes.Proto, dport uint16) types.Decision {
	for v := (view{dir: dir}); ; {
		k, e, ok := m.strongest(v, id, prefixID, portKey{proto, dport, 16})
		switch {
		case !ok || e.Verdict == types.Pass && e.Next <= v.stage:
			return types.Decision{Verdict: types.Deny}
		case e.Verdict != types.Pass:
			return types.Decision{Verdict: e.Verdict, Rule: e.Rule, Key: k, Found: true}
		}
		v.stage = e.Next
	}
}

// strongest is the lookup of the kernel in all planes of one stage.
func (m MapState) strongest(v view, id, prefixID identity.NumericIdentity, packet portKey) (key types.Key, best types.Entry, found bool) {
	for i, plane := range [3]identity.NumericIdentity{id, prefixID, 0} {
		if i == 0 && plane == 0 || i == 1 && (plane == 0 || plane == id) {
			continue
		}
		k, e, ok := m.longest(plane, v, packet)
		if ok && (!found || e.Beats(best)) {
			key, best, found = k, e, true
		}
	}
	return key, best, found
}

// longest is the lookup of the kernel's prefix trie in one plane.
func (m MapState) longest(id identity.NumericIdentity, v view, packet portKey) (types.Key, types.Entry, bool) {
	if packet.proto != wtypes.ProtoAny {
		for n := 16; n >= 0; n-- {
			k := portKey{packet.proto, packet.port & portMask(uint8(n)), uint8(n)}.key(id, v)
			if e, ok := m[k]; ok {
				return k, e, true
			}
		}
	}
	k := portKey{}.key(id, v)
	e, ok := m[k]
	return k, e, ok
}

// compareKeys orders keys by direction, stage, identity, protocol and port.
func compareKeys(a, b types.Key) int {
	return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Identity, b.Identity),
		cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port), cmp.Compare(a.PortBits, b.PortBits))
}
