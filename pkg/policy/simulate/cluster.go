package simulate

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Cluster is a World with numbers.
type Cluster struct {
	Index    *policy.Index         // knows every identity and every pod's named ports
	Prefixes map[netip.Prefix]bool // what the policies name; true: a block that matches pods

	world    World
	numbers  *Numbers
	ends     map[netip.Addr]End
	byName   map[string][]End // in the order of addresses
	policies map[string]*policy.SelectorPolicy
	subjects *subjects
	selected bool // see selectPeers
	states   map[string]policy.MapState
	shared   map[string]policy.MapState // by stateKey
	rules    map[string]types.RuleID    // by RuleRef.Key
	refs     []types.RuleRef            // by number, less one
}

// New gives everything in the world its numbers. Clusters that share Numbers
// agree on those of equal label sets; nil means numbers of its own.
func New(w World, n *Numbers) (*Cluster, error) {
	c := &Cluster{
		world: w, numbers: cmp.Or(n, &Numbers{}), ends: map[netip.Addr]End{}, byName: map[string][]End{},
		policies: map[string]*policy.SelectorPolicy{}, states: map[string]policy.MapState{}, shared: map[string]policy.MapState{},
		subjects: newSubjects(w.Policies), rules: map[string]types.RuleID{},
	}
	ids := identity.ReservedIdentities()
	pods := map[netip.Addr]policy.Pod{}
	for _, p := range w.Pods {
		id := c.numbers.Of(p.Labels)
		ids[id] = p.Labels
		for _, a := range p.Addrs {
			pods[a.Unmap()] = policy.Pod{Identity: id, NamedPorts: p.NamedPorts}
		}
	}
	c.Index, _ = policy.NewIndex(ids).Apply(policy.Events{Pods: pods})
	c.Prefixes = policy.Prefixes(w.Policies, c.Index)
	where := identity.IdentityMap{}
	for p, matchesPods := range c.Prefixes {
		outside := labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
		where[c.numbers.Of(outside)] = outside
		if matchesPods {
			inside := labels.NewLabelArray(labels.CIDRLabel(p))
			where[c.numbers.Of(inside)] = inside
		}
	}
	c.Index, _ = c.Index.Apply(policy.Events{Added: where})
	for _, p := range w.Pods {
		if err := c.add(p.Name, p.Addrs, End{Pod: true, Labels: p.Labels, NamedPorts: p.NamedPorts}); err != nil {
			return nil, err
		}
	}
	for _, h := range w.Hosts {
		if err := c.add(h.Name, h.Addrs, End{Labels: h.Labels}); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add makes an end per address.
func (c *Cluster) add(name string, addrs []netip.Addr, e End) error {
	if _, twice := c.byName[name]; twice {
		return fmt.Errorf("%s is there twice; give one of them another name", name)
	}
	c.byName[name] = nil
	for _, a := range addrs {
		a = a.Unmap()
		if other, taken := c.ends[a]; taken {
			return fmt.Errorf("%s and %s both have the address %s", other.Name, name, a)
		}
		end := c.locate(a, e)
		end.Name = name
		c.ends[a] = end
		c.byName[name] = append(c.byName[name], end)
	}
	return nil
}

// locate fills in an end's numbers.
func (c *Cluster) locate(a netip.Addr, e End) End {
	e.Addr = a
	if e.Labels == nil { // outside: who and where are one number
		e.Labels = labels.NewLabelArray(labels.WorldLabel(a))
		if p := c.longest(a, false); p.IsValid() {
			e.Labels = e.Labels.With(labels.CIDRLabel(p))
			e.Prefix = c.numbers.Of(e.Labels)
		}
	} else if p := c.longest(a, true); p.IsValid() {
		e.Prefix = c.numbers.Of(labels.NewLabelArray(labels.CIDRLabel(p)))
	}
	e.Identity = c.numbers.Of(e.Labels)
	return e
}

// longest returns the longest of the prefixes that holds the address; podsOnly
// looks only at those of blocks that match pods.
func (c *Cluster) longest(a netip.Addr, podsOnly bool) netip.Prefix {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		if pods, named := c.Prefixes[p]; err == nil && named && (pods || !podsOnly) {
			return p
		}
	}
	return netip.Prefix{}
}

// Names returns the pods, then the hosts, in the order of the world.
func (c *Cluster) Names() []string {
	var out []string
	for _, p := range c.world.Pods {
		out = append(out, p.Name)
	}
	for _, h := range c.world.Hosts {
		out = append(out, h.Name)
	}
	return out
}

// Ends returns an end per address of a pod or host; false if there is none of
// that name.
func (c *Cluster) Ends(name string) ([]End, bool) {
	ends, ok := c.byName[name]
	return ends, ok
}

// End returns the end of an address, which may be nobody's.
func (c *Cluster) End(a netip.Addr) End {
	a = a.Unmap().WithZone("")
	if e, ok := c.ends[a]; ok {
		return e
	}
	e := c.locate(a, End{})
	e.Name = a.String()
	return e
}

// OutsideIdentity is the number of what is outside and in a prefix of Prefixes.
func (c *Cluster) OutsideIdentity(p netip.Prefix) identity.NumericIdentity {
	return c.numbers.Of(labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr())))
}

// Policy returns what the policies say about a pod's end; nil for other ends.
func (c *Cluster) Policy(e End) *policy.SelectorPolicy {
	if !e.Pod {
		return nil
	}
	sp := c.policies[e.Name]
	if sp == nil {
		subject := policy.Subject{Identity: e.Identity, Labels: e.Labels, NamedPorts: e.NamedPorts}
		sp = policy.Resolve(subject, c.subjects.of(e.Labels), c.world.Mode, c.number)
		c.policies[e.Name] = sp
	}
	return sp
}

// number gives each rule a number.
func (c *Cluster) number(ref types.RuleRef) types.RuleID {
	key := ref.Key()
	id, ok := c.rules[key]
	if !ok {
		c.refs = append(c.refs, ref)
		id = types.RuleID(len(c.refs))
		c.rules[key] = id
	}
	return id
}

// Side is what one end says of a connection.
type Side struct {
	Judged  bool // false: the end is no pod, and allows
	Verdict types.Verdict
	Rule    types.RuleRef
}

// Decide judges a connection with the map states that the kernel would hold.
// The port of ICMP is the type.
func (c *Cluster) Decide(from, to End, proto wtypes.Proto, port uint16) (egress, ingress Side, err error) {
	if egress, err = c.side(from, to, types.Egress, proto, port); err != nil {
		return egress, ingress, err
	}
	ingress, err = c.side(to, from, types.Ingress, proto, port)
	return egress, ingress, err
}

func (c *Cluster) side(subject, peer End, dir types.Direction, proto wtypes.Proto, port uint16) (Side, error) {
	if !subject.Pod {
		return Side{Verdict: types.Allow}, nil
	}
	m, err := c.MapState(subject)
	if err != nil {
		return Side{}, err
	}
	d := m.Decide(dir, peer.Identity, peer.Prefix, proto, port)
	if !d.Found || d.Rule == 0 {
		return Side{}, fmt.Errorf("%s of %s: no entry was found", dir, subject.Name)
	}
	return Side{Judged: true, Verdict: d.Verdict, Rule: c.refs[d.Rule-1]}, nil
}

// Explain judges a connection by the rules that match, and says why.
func (c *Cluster) Explain(from, to End, proto wtypes.Proto, port uint16) explain.Explanation {
	return explain.Explain(c.Index, explain.Question{
		From: c.peer(from), To: c.peer(to), Proto: proto, Port: port, Policies: c.world.Policies,
	})
}

func (c *Cluster) peer(e End) explain.Peer {
	return explain.Peer{Name: e.Name, Identity: e.Identity, PrefixIdentity: e.Prefix, Policy: c.Policy(e), Addr: e.Addr}
}
