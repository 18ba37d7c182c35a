package lint

import (
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
)

// known is the world in a form that thousands of policies can be asked of.
type known struct {
	pods, hostPods podSet
	spaces         []labels.LabelArray   // of the namespaces, as their pods have them
	spaceMatches   map[string]bool       // by the key of a selector's namespace part
	values         map[string][]string   // of a label's key, each once, as pods come
	around         map[bool]netip.Prefix // the smallest prefix around all pods' addresses, by whether they are IPv4
	addrs          []podAddr             // sorted
	nodes          map[netip.Addr]string
}

// podAddr is an address and the place of its pod in the world.
type podAddr struct {
	netip.Addr
	pod int
}

func newKnown(w World) *known {
	k := &known{
		pods: newPodSet(w.Pods), hostPods: newPodSet(w.HostPods), spaceMatches: map[string]bool{}, values: map[string][]string{},
		around: map[bool]netip.Prefix{}, nodes: map[netip.Addr]string{},
	}
	for _, n := range w.Namespaces {
		k.spaces = append(k.spaces, labels.PodLabels(labels.Pod{Namespace: n.Name, NamespaceLabels: n.Labels}))
	}
	for i, p := range w.Pods {
		for _, a := range p.Addrs {
			k.addrs = append(k.addrs, podAddr{a, i})
			k.around[a.Is4()] = widen(k.around[a.Is4()], a)
		}
	}
	slices.SortFunc(k.addrs, func(a, b podAddr) int { return a.Compare(b.Addr) })
	for _, n := range w.Nodes {
		for _, a := range n.Addrs {
			if _, taken := k.nodes[a]; !taken {
				k.nodes[a] = n.Name
			}
		}
	}
	return k
}

// namespace reports whether a namespace that is known matches a selector's part
// about namespaces.
func (k *known) namespace(s labels.Selector) bool {
	part := labels.NewSelector(namespacePart(s)...)
	found, ok := k.spaceMatches[part.Key()]
	if !ok {
		found = slices.ContainsFunc(k.spaces, part.Matches)
		k.spaceMatches[part.Key()] = found
	}
	return found
}

// inside returns the place of the last pod with an address in the prefix, and how
// many of the addresses lie there.
func (k *known) inside(p netip.Prefix) (pod, n int) {
	p = p.Masked()
	first, _ := slices.BinarySearchFunc(k.addrs, p.Addr(), func(a podAddr, b netip.Addr) int { return a.Compare(b) })
	for _, a := range k.addrs[first:] {
		if !p.Contains(a.Addr) {
			break
		}
		pod, n = max(pod, a.pod), n+1
	}
	return pod, n
}

// podSet finds pods by their labels.
type podSet struct {
	pods    []simulate.Pod
	byLabel map[[2]string][]int // by key and value
	answers map[string]bool     // of any, by the key of the selector
}

func newPodSet(pods []simulate.Pod) podSet {
	s := podSet{pods: pods, byLabel: map[[2]string][]int{}, answers: map[string]bool{}}
	for i, p := range pods {
		for _, l := range p.Labels {
			at := [2]string{l.Key, l.Value}
			s.byLabel[at] = append(s.byLabel[at], i)
		}
	}
	return s
}

// any reports whether the selector matches one of the pods.
func (s podSet) any(sel labels.Selector) bool {
	found, ok := s.answers[sel.Key()]
	if ok {
		return found
	}
	var few []int
	narrowed := false
	for _, r := range sel.Requirements() {
		if r.Operator != labels.In || len(r.Values) != 1 {
			continue
		}
		if have := s.byLabel[[2]string{r.Key, r.Values[0]}]; !narrowed || len(have) < len(few) {
			few, narrowed = have, true
		}
	}
	if narrowed {
		found = slices.ContainsFunc(few, func(i int) bool { return sel.Matches(s.pods[i].Labels) })
	} else {
		found = slices.ContainsFunc(s.pods, func(p simulate.Pod) bool { return sel.Matches(p.Labels) })
	}
	s.answers[sel.Key()] = found
	return found
}
