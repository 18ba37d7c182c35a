package lint

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
)

// cluster is the world with every pod at an address.
type cluster struct {
	*simulate.Cluster
	pods  []simulate.Pod
	ports map[identity.NumericIdentity]string // the named ports of an identity's pods
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
	ports := map[identity.NumericIdentity]string{}
	for _, p := range w.Pods {
		if ends, _ := c.Ends(p.Name); len(ends) > 0 {
			ports[ends[0].Identity] += portsText(p.NamedPorts) + ";"
		}
	}
	return &cluster{c, w.Pods, ports}, nil
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

// madeUpPods returns the witnesses of every selector of the policies. They give
// every port name that a rule uses a number that no rule speaks of. unsure are
// the rules, by key, of which not all witnesses could be made.
func (l *linter) madeUpPods() (pods []simulate.Pod, unsure map[string]bool) {
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
	l.eachSelector(func(p part, r *types.Rule, s labels.Selector) {
		sets, complete := witnesses(s, diff)
		for _, a := range sets {
			add(a)
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
	// And those that no selector by labels asks for.
	sets, _ := witnesses(labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.Exists}), diff)
	for _, a := range sets {
		add(a)
	}
	return pods, unsure
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
