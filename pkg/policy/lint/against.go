package lint

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// against checks rules against those that govern the same pods.
func (l *linter) against() {
	l.ports()
	pods, unsure, crowded := l.madeUpPods()
	c, err := l.newCluster(pods)
	if err != nil {
		return // two pods with one address: that is reported where they are read
	}
	w := &watch{rules: map[string]*fate{}, byID: map[types.RuleID]*fate{}, most: l.most, over: crowded}
	done := map[string]bool{}
	for _, p := range c.pods {
		ends, ok := c.Ends(p.Name)
		if !ok || len(ends) == 0 {
			continue
		}
		sp := c.Policy(ends[0])
		if key := subjectKey(sp); !done[key] {
			done[key] = true
			w.subject(c, sp)
		}
	}
	if l.asked = w.asked; w.over {
		l.leftOut = append(l.leftOut, "there are too many kinds of pods and packets to say which rules are shadowed (WL301, WL302); lint fewer namespaces at a time")
	}
	for _, p := range l.parts {
		for _, r := range p.rules {
			f := w.rules[r.Ref.Key()]
			if f == nil || l.dead[r.Ref.Key()] {
				continue
			}
			switch {
			case f.matched && !f.decided && !unsure[r.Ref.Key()] && !w.over:
				l.shadowed(p, r, f)
			case len(f.undone) > 0:
				l.report(p, ExceptIsNoDeny, p.rulePath(r), "deny it with a rule of its own (ingressDeny, egressDeny), or leave it out of the other rule too",
					"an except only leaves %s out of this block, and %s allows it", strings.Join(f.undone, ", "), f.undoer)
			}
		}
	}
}

func (l *linter) shadowed(p part, r *types.Rule, f *fate) {
	if r.Verdict == types.Allow && !f.byAllow {
		l.report(p, Overridden, p.rulePath(r), "take the rule out, or narrow the deny", "all that it would allow is denied by %s", f.by)
		return
	}
	l.report(p, Shadowed, p.rulePath(r), "take the rule out", "all that it is about is decided by %s already", f.by)
}

// subjectKey is equal for subjects that the same rules govern in the same way.
func subjectKey(sp *policy.SelectorPolicy) string {
	var b []byte
	for _, d := range []*policy.DirectionPolicy{&sp.Ingress, &sp.Egress} {
		for i := range d.Rules {
			b = binary.AppendUvarint(b, uint64(d.Rules[i].ID))
		}
		b = append(binary.AppendUvarint(append(b, 0), uint64(len(d.Isolating))), 0)
	}
	return string(b) + portsText(sp.Subject.NamedPorts)
}

// watch remembers what became of every rule.
type watch struct {
	rules map[string]*fate // by RuleRef.Key
	byID  map[types.RuleID]*fate
	asked int
	most  int
	over  bool // there is more to ask than is asked
}

// maxAsked is the most packets asked about. Where there are more, no rule is
// called shadowed: what decides might be among those not asked.
const maxAsked = 1_000_000

// fate is what became of a rule, over all subjects and packets asked about.
type fate struct {
	matched, decided bool
	byAllow          bool         // an allow decided where it matched
	by               string       // the rules that decided instead
	last             types.RuleID // of those the one seen last
	undone           []string
	undoer           string
}

func (w *watch) of(r types.RuleRef, id types.RuleID) *fate {
	f := w.byID[id]
	if f == nil {
		f = &fate{}
		w.byID[id], w.rules[r.Key()] = f, f
	}
	return f
}

// subject asks about every kind of packet that the subject's rules can tell apart.
func (w *watch) subject(c *cluster, sp *policy.SelectorPolicy) {
	for _, dir := range []types.Direction{types.Ingress, types.Egress} {
		d := sp.Direction(dir)
		if len(d.Rules) == 0 {
			continue
		}
		packets := packetsOf(d, sp.Subject.NamedPorts, c)
		w.peers(c, sp, dir, packets)
		for i := range d.Rules {
			w.excepts(c, sp, dir, &d.Rules[i], packets)
		}
	}
}

// peers asks about the packets to or from every kind of peer, as long as all
// together are not too many.
func (w *watch) peers(c *cluster, sp *policy.SelectorPolicy, dir types.Direction, packets []packet) {
	if w.over {
		return
	}
	for _, peer := range peersOf(c, sp.Direction(dir), dir) {
		if w.over = w.asked+len(packets) > w.most; w.over {
			return
		}
		w.asked += len(packets)
		for _, q := range packets {
			w.note(sp.Matching(c.Index, dir, peer.id, peer.where, q.proto, q.port))
		}
	}
}

func (w *watch) note(ms []policy.Match) {
	if ms[0].Ref.Kind == types.KindPolicy {
		w.of(ms[0].Ref, ms[0].Entry.Rule).decided = true
	}
	for _, m := range ms[1:] {
		if m.Ref.Kind != types.KindPolicy {
			continue
		}
		f := w.of(m.Ref, m.Entry.Rule)
		f.matched = true
		if m.Entry.Verdict == types.Pass {
			f.decided = true // it passes on, which decides in its way
		}
		f.byAllow = f.byAllow || ms[0].Entry.Verdict == types.Allow
		if f.last == ms[0].Entry.Rule || strings.Count(f.by, " and ") >= 2 {
			continue
		}
		f.last = ms[0].Entry.Rule
		if by := ms[0].Ref.String(); !strings.Contains(f.by, by) {
			f.by = strings.TrimPrefix(f.by+" and "+by, " and ")
		}
	}
}

// excepts finds excepts that other rules allow as widely as this one allows the block.
func (w *watch) excepts(c *cluster, sp *policy.SelectorPolicy, dir types.Direction, r *policy.ResolvedRule, packets []packet) {
	if r.Verdict != types.Allow {
		return
	}
	for _, peer := range r.Peers {
		if peer.CIDR == nil {
			continue
		}
		inside := prefixID(c, peer.CIDR.Prefix)
		for _, e := range peer.CIDR.Except {
			if by := w.undoer(c, sp, dir, r, prefixID(c, e), inside, packets); by != "" {
				f := w.of(r.Ref, r.ID)
				if !slices.Contains(f.undone, e.String()) {
					f.undone, f.undoer = append(f.undone, e.String()), by
				}
			}
		}
	}
}

// prefixID is the identity of addresses outside whose longest prefix is p.
func prefixID(c *cluster, p netip.Prefix) identity.NumericIdentity {
	p = labels.CanonicalPrefix(p)
	if _, named := c.Prefixes[p]; !named {
		return 0
	}
	return c.OutsideIdentity(p)
}

// undoer returns a rule that allows the identity all packets that r allows the
// block, or "".
func (w *watch) undoer(c *cluster, sp *policy.SelectorPolicy, dir types.Direction, r *policy.ResolvedRule, at, block identity.NumericIdentity, packets []packet) string {
	by := ""
	if at == 0 {
		return ""
	}
	for _, q := range packets {
		allows := slices.ContainsFunc(sp.Matching(c.Index, dir, block, block, q.proto, q.port), func(m policy.Match) bool { return m.Ref.Key() == r.Ref.Key() })
		if !allows {
			continue
		}
		m := sp.Matching(c.Index, dir, at, at, q.proto, q.port)[0]
		if m.Ref.Kind != types.KindPolicy || m.Entry.Verdict != types.Allow {
			return ""
		}
		if by = m.Ref.String(); m.Ref.Key() == r.Ref.Key() {
			by = "another peer of the rule itself"
		}
	}
	return by
}

// peerIDs is one kind of peer: who and where.
type peerIDs struct{ id, where identity.NumericIdentity }

// peersOf returns one peer of every kind that the rules of a direction can tell apart.
func peersOf(c *cluster, d *policy.DirectionPolicy, dir types.Direction) []peerIDs {
	marks, named := marksOf(c, d, dir)
	var who, where []identity.NumericIdentity
	var out []peerIDs
	seen := map[string]bool{}
	for _, id := range c.firstOf(marks) {
		kind := c.kinds[id]
		key := kind + string(marks[id])
		if named && kind == "who" {
			key += c.ports[id]
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		switch kind {
		case "outside":
			out = append(out, peerIDs{id, id})
		case "where":
			where = append(where, id)
		default:
			who = append(who, id)
			out = append(out, peerIDs{id, 0})
		}
	}
	for _, id := range who {
		if a, _ := c.Index.Labels(id); a.HasWorld() {
			continue
		}
		for _, at := range where {
			out = append(out, peerIDs{id, at})
		}
	}
	return out
}

// marksOf says of the identities that peers of the rules match which peers these
// are: equal marks for those that they match alike. named: the rules also tell the
// peer's port names apart.
func marksOf(c *cluster, d *policy.DirectionPolicy, dir types.Direction) (marks map[identity.NumericIdentity][]byte, named bool) {
	marks = map[identity.NumericIdentity][]byte{}
	n := uint64(0)
	for i := range d.Rules {
		for _, p := range d.Rules[i].Peers {
			if policy.IsWildcard(p) {
				continue
			}
			ids, _ := c.Index.Matches(p)
			for _, id := range ids {
				marks[id] = binary.AppendUvarint(marks[id], n)
			}
			n++
		}
		for _, p := range d.Rules[i].Ports {
			named = named || p.Name != "" && dir == types.Egress // where names are the peer's
		}
	}
	return marks, named
}

// packet is a protocol and a destination port.
type packet struct {
	proto wtypes.Proto
	port  uint16
}

// packetsOf returns one packet of every kind that the rules can tell apart: the
// first of every stretch of ports between the ends of their ranges.
func packetsOf(d *policy.DirectionPolicy, own types.NamedPorts, c *cluster) []packet {
	var out []packet
	add := func(proto wtypes.Proto, port uint16) {
		if q := (packet{proto, port}); !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	for _, proto := range []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP, wtypes.ProtoICMP, wtypes.ProtoICMPv6, otherProto} {
		add(proto, 0)
	}
	ends := func(proto wtypes.Proto, first, last uint16) {
		add(proto, first)
		if last < 65535 {
			add(proto, last+1)
		}
	}
	for i := range d.Rules {
		for _, p := range d.Rules[i].Ports {
			if p.Name == "" {
				ends(p.Proto, p.Port, max(p.Port, p.End))
				continue
			}
			name := types.NamedPort{Name: p.Name, Proto: p.Proto}
			ends(p.Proto, own[name], own[name])
			for _, number := range c.numbersOf(name) {
				ends(p.Proto, number, number)
			}
		}
	}
	return out
}

// otherProto is a protocol that no dialect names: GRE.
const otherProto = 47

// ports finds names of ports that no pod gives.
func (l *linter) ports() {
	if len(l.world.Pods) == 0 {
		return
	}
	c, err := l.newCluster(nil)
	if err != nil {
		return
	}
	type name struct {
		rule string
		port types.NamedPort
	}
	asked, missing := map[string]int{}, map[name]int{}
	done := map[string]bool{}
	for _, p := range c.pods {
		ends, _ := c.Ends(p.Name)
		if len(ends) == 0 {
			continue
		}
		sp := c.Policy(ends[0])
		if key := subjectKey(sp); done[key] {
			continue
		} else {
			done[key] = true
		}
		for _, d := range []*policy.DirectionPolicy{&sp.Ingress, &sp.Egress} {
			for i := range d.Rules {
				asked[d.Rules[i].Ref.Key()]++
			}
		}
		for _, u := range sp.UnresolvedPorts(c.Index) {
			missing[name{u.Rule.Key(), u.Port}]++
		}
	}
	for _, p := range l.parts {
		for _, r := range p.rules {
			key := r.Ref.Key()
			if l.dead[key] {
				continue
			}
			unknown := func(port types.Port) bool {
				n := name{key, types.NamedPort{Name: port.Name, Proto: port.Proto}}
				return port.Name != "" && asked[key] > 0 && missing[n] >= asked[key]
			}
			l.unknownPorts(p, r, unknown)
		}
	}
}

// unknownPorts reports the names of a rule that no pod gives a port. A name that
// may stand for several protocols is unknown only where it is so for all of them.
func (l *linter) unknownPorts(p part, r *types.Rule, unknown func(types.Port) bool) {
	known := func(port types.Port) bool { return !unknown(port) }
	l.dead[r.Ref.Key()] = l.dead[r.Ref.Key()] || len(r.Ports) > 0 && !slices.ContainsFunc(r.Ports, known)
	for i, port := range r.Ports {
		what, same := port.Proto.String()+" port", func(o types.Port) bool { return o.Name == port.Name && o.Proto != port.Proto }
		if !unknown(port) {
			continue
		}
		if !p.object.HasField("spec.podSelector") && slices.ContainsFunc(r.Ports, same) {
			if slices.ContainsFunc(r.Ports, func(o types.Port) bool { return same(o) && known(o) }) || slices.ContainsFunc(r.Ports[:i], same) {
				continue
			}
			what = "port"
		}
		l.report(p, UnknownPort, p.portPath(r, i), "correct the name or the protocol, name the port in the pods, or give its number"+
			l.portHint(types.NamedPort{Name: port.Name, Proto: port.Proto}), "none of the pods whose port it is calls a %s %q", what, port.Name)
	}
}

// portPath is the field of the i-th port of a rule, or the rule.
func (p part) portPath(r *types.Rule, i int) string {
	if at := fmt.Sprintf("%s.ports[%d]", p.rulePath(r), i); p.object.HasField(at) {
		return at
	}
	if at := p.rulePath(r) + ".toPorts"; p.object.HasField(at) {
		return at
	}
	return p.rulePath(r)
}

// portHint names a port of the pods that may be meant.
func (l *linter) portHint(n types.NamedPort) string {
	var known []string
	for _, p := range l.world.Pods {
		for o := range p.NamedPorts {
			if o.Name == n.Name && o.Proto != n.Proto {
				return " (" + p.Name + " gives it for " + o.Proto.String() + ")"
			}
			known = append(known, o.Name)
		}
	}
	slices.Sort(known)
	return l.meant(n.Name, slices.Compact(known))
}
