package lint

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
)

// cluster is the world with every pod at an address.
type cluster struct {
	*simulate.Cluster
	pods []simulate.Pod
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
	return &cluster{c, w.Pods}, err
}

// madeUpPods returns the witnesses of every selector of the policies. They give
// every port name that a rule uses a number of its own.
func (l *linter) madeUpPods() []simulate.Pod {
	var selectors []labels.Selector
	ports := types.NamedPorts{}
	for _, p := range l.parts {
		selectors = append(selectors, p.policy.Subject)
		for _, r := range p.rules {
			for _, peer := range r.Peers {
				if peer.Labels != nil {
					selectors = append(selectors, *peer.Labels)
				}
			}
			for _, port := range r.Ports {
				if n := (types.NamedPort{Name: port.Name, Proto: port.Proto}); n.Name != "" && ports[n] == 0 {
					ports[n] = 40000 + uint16(len(ports))
				}
			}
		}
	}
	seen := map[string]bool{}
	extra := excludedLabels(selectors)
	var out []simulate.Pod
	add := func(a labels.LabelArray) {
		if !seen[a.Key()] {
			seen[a.Key()] = true
			out = append(out, simulate.Pod{Name: fmt.Sprintf("made-up/%d", len(out)), Labels: a, NamedPorts: ports})
		}
	}
	for _, s := range selectors {
		for _, a := range witnesses(s, extra) {
			add(a)
		}
	}
	// And one that no selector by labels asks for.
	add(labels.PodLabels(labels.Pod{Namespace: madeUp, Labels: map[string]string{madeUp: madeUp}}))
	return out
}
