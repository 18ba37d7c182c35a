package lint

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
)

// cluster is the world with every pod at an address.
type cluster struct {
	*simulate.Cluster
	pods  []simulate.Pod
	ports map[identity.NumericIdentity]string // the named ports of an identity's pods
	kinds map[identity.NumericIdentity]string // "outside", "where" of a prefix that pods are in, or "who"
	// classes are the identities, sorted, that differ in nothing but which peers match them.
	classes [][]identity.NumericIdentity
	numbers map[types.NamedPort][]uint16 // see numbersOf
}

// classify fills in kinds and classes.
func (c *cluster) classify() {
	c.kinds = map[identity.NumericIdentity]string{}
	at := map[string]int{}
	all := c.Index.Identities()
	for _, id := range all.IDs() {
		a := all[id]
		_, prefix := a.Prefix()
		kind := "who"
		switch {
		case prefix && a.HasWorld():
			kind = "outside"
		case prefix:
			kind = "where"
		}
		c.kinds[id] = kind
		key := kind + c.ports[id]
		if kind != "who" {
			key = kind
		}
		n, ok := at[key]
		if !ok {
			n = len(c.classes)
			at[key] = n
			c.classes = append(c.classes, nil)
		}
		c.classes[n] = append(c.classes[n], id)
	}
}

// firstOf returns, sorted, the identities that have marks and the first of each
// class that has none: they stand for all others.
func (c *cluster) firstOf(marks map[identity.NumericIdentity][]byte) []identity.NumericIdentity {
	out := slices.Collect(maps.Keys(marks))
	for _, class := range c.classes {
		if i := slices.IndexFunc(class, func(id identity.NumericIdentity) bool { return marks[id] == nil }); i >= 0 {
			out = append(out, class[i])
		}
	}
	slices.Sort(out)
	return out
}

// numbersOf lists the numbers that pods give a port name, each once; 0 if one of
// them gives it none.
func (c *cluster) numbersOf(name types.NamedPort) []uint16 {
	out, ok := c.numbers[name]
	if ok {
		return out
	}
	seen := map[uint16]bool{}
	for _, pod := range c.pods {
		if n := pod.NamedPorts[name]; !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	c.numbers[name] = out
	return out
}

// newCluster adds made-up pods to the known ones, if more is given, and gives
// an address to every pod that has none.
func (l *linter) newCluster(more []simulate.Pod) (*cluster, error) {
	w := simulate.World{Hosts: l.world.Nodes}
	for _, p := range l.parts {
		w.Policies = append(w.Policies, p.policy)
	}
	next := netip.MustParseAddr("240.0.0.1") // of a block that nobody uses
	for _, p := range slices.Concat(l.world.Pods, more) {
		if len(p.Addrs) == 0 {
			p.Addrs = []netip.Addr{next}
			next = next.Next()
		}
		w.Pods = append(w.Pods, p)
	}
	c, err := simulate.New(w, nil)
	if err != nil {
		return nil, err
	}
	var peers []types.Peer // asked about for one subject after another
	for _, p := range l.parts {
		for _, r := range p.rules {
			peers = append(peers, r.Peers...)
		}
	}
	c.Index, _ = c.Index.Apply(policy.Events{Select: peers})
	ports := map[identity.NumericIdentity]string{}
	for _, p := range w.Pods {
		if ends, _ := c.Ends(p.Name); len(ends) > 0 {
			ports[ends[0].Identity] += portsText(p.NamedPorts) + ";"
		}
	}
	out := &cluster{Cluster: c, pods: w.Pods, ports: ports, numbers: map[types.NamedPort][]uint16{}}
	out.classify()
	return out, nil
}

// portsText is equal for equal named ports.
func portsText(ports types.NamedPorts) string {
	names := make([]string, 0, len(ports))
	for n, number := range ports {
		names = append(names, fmt.Sprintf("%s=%d", n, number))
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// maxMadeUp is the most pods that are made up. Where it would take more, no rule is
// called shadowed, as where there are too many packets.
const maxMadeUp = 100_000

// madeUpPods returns the witnesses of every selector of the policies. They give
// every port name that a rule uses a number that no rule speaks of. unsure are
// the rules, by key, of which not all witnesses could be made; crowded says that
// there are more witnesses than pods are made up.
func (l *linter) madeUpPods() (pods []simulate.Pod, unsure map[string]bool, crowded bool) {
	unsure = map[string]bool{}
	diff := choices{}
	l.eachSelector(func(p part, r *types.Rule, s labels.Selector) {
		diff.exclude(s)
		// What passes over other rules makes a difference by being there.
		passes := func(r *types.Rule) bool { return r.Verdict == types.Pass }
		if r != nil && passes(r) || r == nil && slices.ContainsFunc(p.rules, passes) {
			diff.demand(s)
		}
	})
	ports := l.freePorts(unsure)
	seen := map[string]bool{}
	add := func(a labels.LabelArray) {
		if !seen[a.Key()] {
			seen[a.Key()] = true
			pods = append(pods, simulate.Pod{Name: fmt.Sprintf("made-up/%d", len(pods)), Labels: a, NamedPorts: ports})
		}
	}
	asked := map[string]bool{} // by the key of a selector, whether its witnesses are complete
	l.eachSelector(func(p part, r *types.Rule, s labels.Selector) {
		if crowded = len(pods) > maxMadeUp; crowded {
			return
		}
		complete, known := asked[s.Key()]
		if !known {
			var sets []labels.LabelArray
			sets, complete = witnesses(s, diff)
			for _, a := range sets {
				add(a)
			}
			asked[s.Key()] = complete
		}
		if complete {
			return
		}
		if r != nil {
			unsure[r.Ref.Key()] = true
			return
		}
		for _, r := range p.rules {
			unsure[r.Ref.Key()] = true
		}
	})
	if crowded {
		return nil, unsure, true
	}
	// And those that no selector by labels asks for.
	sets, _ := witnesses(labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.Exists}), diff)
	for _, a := range sets {
		add(a)
	}
	return pods, unsure, false
}

// eachSelector calls do with every selector by labels: the subjects, with r nil,
// and the peers.
func (l *linter) eachSelector(do func(p part, r *types.Rule, s labels.Selector)) {
	for _, p := range l.parts {
		do(p, nil, p.policy.Subject)
		for _, r := range p.rules {
			for _, peer := range r.Peers {
				if peer.Labels != nil {
					do(p, r, *peer.Labels)
				}
			}
		}
	}
}

// freePorts gives each port name of the rules a number that no rule lists.
func (l *linter) freePorts(unsure map[string]bool) types.NamedPorts {
	out := types.NamedPorts{}
	next := uint16(65534)
	for _, p := range l.parts {
		for _, r := range p.rules {
			for _, port := range r.Ports {
				n := types.NamedPort{Name: port.Name, Proto: port.Proto}
				if n.Name == "" || out[n] != 0 {
					continue
				}
				for next > 0 && l.listed(next) {
					next--
				}
				if next == 0 {
					unsure[r.Ref.Key()] = true
					continue
				}
				out[n] = next
				next--
			}
		}
	}
	return out
}

// listed reports whether a rule lists the port by number, of any protocol.
func (l *linter) listed(n uint16) bool {
	for _, p := range l.parts {
		for _, r := range p.rules {
			for _, port := range r.Ports {
				if port.Port > 0 && port.Port <= n && n <= max(port.Port, port.End) {
					return true
				}
			}
		}
	}
	return false
}
