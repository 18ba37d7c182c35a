package differential

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/cli/trial"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// pod is a pod of a world, here or on another node.
type pod struct {
	oracle.Pod           // Addrs: one per family, IPv4 first
	at         *endpoint // nil: on another node
	identity   identity.NumericIdentity
	inForce    int // index of the world's version that the pod is held to
	selector   *policy.SelectorPolicy
	state      policy.MapState
	kernel     trial.Policy
}

// group is the same for pods that always have the same policy.
func (p *pod) group() string { return p.Labels.Key() + fmt.Sprint(p.NamedPorts) }

// end is one address of the world and what the data plane should know of it.
type end struct {
	name      string
	addr      netip.Addr
	pod       *pod // nil: a node, or outside
	node      *oracle.Node
	id, where identity.NumericIdentity
}

// local reports whether a pod of this node has the address.
func (e *end) local() bool { return e.pod != nil && e.pod.at != nil }

// version is a set of policies that pods are held to.
type version struct {
	mode     types.Mode
	policies []*types.Policy
}

// world is a random world with its policies and numbers.
type world struct {
	gen
	number   uint64
	facts    oracle.World
	pods     []*pod
	ends     []*end
	versions [2]version // before and after a change
	ports    []uint16   // worth asking about

	numbers  *simulate.Numbers
	index    *policy.Index
	prefixes map[netip.Prefix]bool
}

// numbersOfRules numbers every rule of a run, the same one the same.
type numbersOfRules struct {
	ids  map[string]types.RuleID
	refs []types.RuleRef // by number - 1
}

func (n *numbersOfRules) of(r types.RuleRef) types.RuleID {
	id, ok := n.ids[r.Key()]
	if !ok {
		n.refs = append(n.refs, r)
		id = types.RuleID(len(n.refs))
		n.ids[r.Key()] = id
	}
	return id
}

func (n *numbersOfRules) text(id types.RuleID) string {
	if id == 0 || int(id) > len(n.refs) {
		return fmt.Sprintf("rule %d", id)
	}
	return fmt.Sprintf("rule %d (%s)", id, n.refs[id-1])
}

// newWorld draws the world with this number.
func newWorld(seed, number uint64, numbers *simulate.Numbers, here []*endpoint) *world {
	w := &world{gen: gen{rand.New(rand.NewPCG(seed, number))}, number: number, numbers: numbers}
	taken := map[netip.Addr]bool{}
	for _, e := range here {
		taken[e.Layout.IPv4], taken[e.Layout.IPv6] = true, true
	}
	fresh := func(draw func() netip.Addr) netip.Addr {
		for {
			if a := draw(); !taken[a] {
				taken[a] = true
				return a
			}
		}
	}
	both := func(v4, v6 func() netip.Addr) []netip.Addr { return []netip.Addr{fresh(v4), fresh(v6)} }

	here = slices.Clone(here)
	w.Shuffle(len(here), func(i, j int) { here[i], here[j] = here[j], here[i] })
	n := w.between(4, 7)
	for i := range n + w.between(1, 3) {
		p := &pod{Pod: oracle.Pod{Name: fmt.Sprintf("pod%d", i), Labels: w.podLabels(), NamedPorts: w.namedPorts()}}
		if i < n {
			p.at = here[i]
			p.Addrs = []netip.Addr{p.at.Layout.IPv4, p.at.Layout.IPv6}
			if w.chance(5) {
				p.Labels = labels.NewLabelArray(labels.Reserved(labels.NameInit))
			}
		} else {
			p.Addrs = both(w.podAddr4, w.podAddr6)
		}
		w.pods = append(w.pods, p)
		w.facts.Pods = append(w.facts.Pods, p.Pod)
	}
	w.facts.Nodes = []oracle.Node{
		{Name: "this node", Local: true, Addrs: both(w.podAddr4, w.podAddr6)},
		{Name: "another node", Addrs: both(w.podAddr4, w.podAddr6)},
	}
	w.addEnds()
	for range w.between(2, 4) {
		for _, a := range both(w.outsideAddr4, w.outsideAddr6) {
			w.ends = append(w.ends, &end{name: "outside", addr: a})
		}
	}
	// The address of a pod that went.
	w.ends = append(w.ends, &end{name: "gone", addr: here[n].Layout.IPv4}, &end{name: "gone", addr: here[n].Layout.IPv6})
	w.versions[0] = w.version(fmt.Sprintf("w%d-before", number), nil)
	w.versions[1] = w.version(fmt.Sprintf("w%d-after", number), w.versions[0].policies)
	w.ports = w.interestingPorts()
	return w
}

func (w *world) addEnds() {
	for _, p := range w.pods {
		for _, a := range p.Addrs {
			w.ends = append(w.ends, &end{name: p.Name, addr: a, pod: p})
		}
	}
	for i := range w.facts.Nodes {
		n := &w.facts.Nodes[i]
		for _, a := range n.Addrs {
			w.ends = append(w.ends, &end{name: n.Name, addr: a, node: n})
		}
	}
}

// interestingPorts are those at the edges of what policies name.
func (w *world) interestingPorts() []uint16 {
	ports := map[uint16]bool{80: true, 1: true, 65535: true}
	around := func(p uint16) { ports[p-1], ports[p], ports[p+1] = true, true, true }
	for _, v := range w.versions {
		for _, p := range v.policies {
			for _, r := range p.Rules {
				for _, port := range r.Ports {
					if port.Proto.HasPorts() && port.Port != 0 {
						around(port.Port)
						if port.End != 0 {
							around(port.End)
							ports[port.Port/2+port.End/2] = true
						}
					}
				}
			}
		}
	}
	for _, p := range w.pods {
		for _, n := range p.NamedPorts {
			ports[n] = true
		}
	}
	return slices.Sorted(maps.Keys(ports))
}

// resolve gives every identity and prefix its number, every address what it
// resolves to, and every pod of this node its map state, under the versions
// that are in force.
func (w *world) resolve(rules *numbersOfRules) error {
	ids := identity.ReservedIdentities()
	pods := map[netip.Addr]policy.Pod{}
	inForce := map[int]bool{}
	for _, p := range w.pods {
		inForce[p.inForce] = true
		p.identity = w.numbers.Of(p.Labels)
		ids[p.identity] = p.Labels
		for _, a := range p.Addrs {
			pods[a] = policy.Pod{Identity: p.identity, NamedPorts: p.NamedPorts}
		}
	}
	w.index, _ = policy.NewIndex(ids).Apply(policy.Events{Pods: pods})
	w.prefixes = map[netip.Prefix]bool{}
	for v := range inForce {
		for p, matchesPods := range policy.Prefixes(w.versions[v].policies, w.index) {
			w.prefixes[p] = w.prefixes[p] || matchesPods
		}
	}
	where := identity.IdentityMap{}
	for _, p := range sortedPrefixes(w.prefixes) {
		where[w.numbers.Of(outsideLabels(p))] = outsideLabels(p)
		if w.prefixes[p] {
			where[w.numbers.Of(insideLabels(p))] = insideLabels(p)
		}
	}
	w.index, _ = w.index.Apply(policy.Events{Added: where})
	for _, e := range w.ends {
		w.locate(e)
	}
	for _, p := range w.pods {
		if p.at == nil {
			continue
		}
		v := w.versions[p.inForce]
		p.selector = policy.Resolve(policy.Subject{Identity: p.identity, Labels: p.Labels, NamedPorts: p.NamedPorts}, v.policies, v.mode, rules.of)
		var err error
		if p.state, err = p.selector.MapState(w.index); err != nil {
			return err
		}
	}
	return nil
}

func outsideLabels(p netip.Prefix) labels.LabelArray {
	return labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
}

func insideLabels(p netip.Prefix) labels.LabelArray {
	return labels.NewLabelArray(labels.CIDRLabel(p))
}

// sortedPrefixes makes numbers a function of the seed.
func sortedPrefixes(m map[netip.Prefix]bool) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), func(a, b netip.Prefix) int { return a.Compare(b) })
}

// locate says what an address resolves to.
func (w *world) locate(e *end) {
	outside := e.pod == nil && e.node == nil
	best := netip.Prefix{}
	for p, matchesPods := range w.prefixes {
		if p.Contains(e.addr) && (outside || matchesPods) && (!best.IsValid() || p.Bits() > best.Bits()) {
			best = p
		}
	}
	e.where = 0
	switch {
	case best.IsValid() && outside:
		e.where = w.numbers.Of(outsideLabels(best))
	case best.IsValid():
		e.where = w.numbers.Of(insideLabels(best))
	}
	switch {
	case e.pod != nil:
		e.id = e.pod.identity
	case e.node != nil && e.node.Local:
		e.id = identity.ReservedHost
	case e.node != nil:
		e.id = identity.ReservedRemoteNode
	case best.IsValid():
		e.id = e.where
	case e.addr.Is4():
		e.id = identity.ReservedWorldIPv4
	default:
		e.id = identity.ReservedWorldIPv6
	}
}

// conn draws a connection with a pod of this node at one end or both.
func (w *world) conn(sport uint16) conn {
	for {
		c := conn{src: pick(w.gen, w.ends), dst: pick(w.gen, w.ends), sport: sport}
		if c.src.addr.Is4() != c.dst.addr.Is4() || !c.src.local() && !c.dst.local() || c.src.pod != nil && c.src.pod == c.dst.pod {
			continue
		}
		switch n := w.IntN(100); {
		case n < 45:
			c.proto = wtypes.ProtoTCP
		case n < 72:
			c.proto = wtypes.ProtoUDP
		case n < 84:
			c.proto = wtypes.ProtoSCTP
		case n < 95 && c.v4():
			c.proto, c.dport = wtypes.ProtoICMP, pick(w.gen, []uint16{echoRequest4, echoRequest4, echoReply4, 13})
		case n < 95:
			c.proto, c.dport = wtypes.ProtoICMPv6, pick(w.gen, []uint16{echoRequest6, echoRequest6, echoReply6, 139})
		case c.v4():
			c.proto, c.sport = pick(w.gen, []wtypes.Proto{47, 50, wtypes.ProtoICMPv6}), 0
		default:
			c.proto, c.sport = pick(w.gen, []wtypes.Proto{47, 50, wtypes.ProtoICMP}), 0
		}
		if c.proto.HasPorts() {
			c.dport = pick(w.gen, w.ports)
			if c.dst.pod != nil && len(c.dst.pod.NamedPorts) > 0 && w.chance(30) {
				for _, name := range sortedNames(c.dst.pod.NamedPorts) {
					c.dport = c.dst.pod.NamedPorts[name]
					if name.Proto == c.proto && w.chance(60) {
						break
					}
				}
			}
		}
		return c
	}
}

func sortedNames(ports types.NamedPorts) []types.NamedPort {
	return slices.SortedFunc(maps.Keys(ports), func(a, b types.NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Proto, b.Proto))
	})
}
