package simulate

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Sketch is a world as people write it down: labels before any filter, and
// addresses only where they matter.
type Sketch struct {
	Cluster    string                       // name of the cluster, a label of every pod
	Namespaces map[string]map[string]string // name to labels
	Pods       []SketchedPod
	Hosts      []SketchedHost
	Policies   []*types.Policy
	Mode       types.Mode
	Filter     *labels.Filter // of labels that make identities; nil: the default one
}

// SketchedPod is a pod without numbers. One without addresses gets one of each
// family, as from a pool of a lab.
type SketchedPod struct {
	Namespace, Name, ServiceAccount string
	Labels                          map[string]string
	Addrs                           []netip.Addr
	Ports                           []Port
}

// Key is namespace/name.
func (p SketchedPod) Key() string { return p.Namespace + "/" + p.Name }

// SketchedHost is a Host with the ports that it serves.
type SketchedHost struct {
	Host
	Ports []Port
}

// Port is a port that a pod or host declares.
type Port struct {
	Name  string // may be empty
	Proto wtypes.Proto
	Port  uint16
}

// NodeName is what a sketch calls the local node.
const NodeName = "node"

// Pools of pods that have no address yet; the first address of each is the node's.
var (
	pool4 = netip.MustParsePrefix("10.77.0.0/16")
	pool6 = netip.MustParsePrefix("fd00:77::/64")
)

// World fills in what the sketch leaves open: addresses, and the local node
// unless there is a host of that name.
func (s Sketch) World() (World, error) {
	w := World{Policies: s.Policies, Mode: s.Mode}
	if s.Filter == nil {
		s.Filter = labels.DefaultFilter() // once for all pods
	}
	used := map[netip.Addr]bool{}
	node := Host{Name: NodeName, Labels: labels.NewLabelArray(labels.Reserved(labels.NameHost))}
	if !slices.ContainsFunc(s.Hosts, func(h SketchedHost) bool { return h.Name == NodeName }) {
		node.Addrs = []netip.Addr{pool4.Addr().Next(), pool6.Addr().Next()}
	}
	for _, h := range s.Hosts {
		w.Hosts = append(w.Hosts, h.Host)
		for _, a := range h.Addrs {
			used[a.Unmap()] = true
		}
	}
	for _, p := range s.Pods {
		for _, a := range p.Addrs {
			used[a.Unmap()] = true
		}
	}
	for _, a := range node.Addrs {
		if used[a] {
			return w, fmt.Errorf("%s is the address of the node; give the pod or host that has it another", a)
		}
		used[a] = true
	}
	next4, next6 := pool4.Addr().Next(), pool6.Addr().Next()
	for _, p := range s.Pods {
		if len(p.Addrs) == 0 {
			next4, next6 = free(next4, used), free(next6, used)
			if !pool4.Contains(next4) {
				return w, fmt.Errorf("more pods without an address than %s has; give some an address", pool4)
			}
			p.Addrs = []netip.Addr{next4, next6}
		}
		w.Pods = append(w.Pods, s.Pod(p))
	}
	if len(node.Addrs) > 0 {
		w.Hosts = append(w.Hosts, node)
	}
	return w, nil
}

func free(a netip.Addr, used map[netip.Addr]bool) netip.Addr {
	for used[a] {
		a = a.Next()
	}
	used[a] = true
	return a
}

// Pod gives a pod the labels that an agent gives it. As there, of two ports of
// one name the last counts.
func (s Sketch) Pod(p SketchedPod) Pod {
	all := labels.PodLabels(labels.Pod{Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Cluster: s.Cluster,
		Labels: p.Labels, NamespaceLabels: s.Namespaces[p.Namespace]})
	filter := s.Filter
	if filter == nil {
		filter = labels.DefaultFilter()
	}
	ids, _ := filter.Split(all)
	pod := Pod{Name: p.Key(), Labels: ids, Addrs: p.Addrs, NamedPorts: types.NamedPorts{}}
	for _, port := range p.Ports {
		if port.Name != "" {
			pod.NamedPorts[types.NamedPort{Name: port.Name, Proto: port.Proto}] = port.Port
		}
	}
	return pod
}

// Ports returns a function that gives the ports which a pod or host declares.
func (s Sketch) Ports() func(name string) []Port {
	out := make(map[string][]Port, len(s.Pods)+len(s.Hosts))
	add := func(name string, ports []Port) {
		if _, twice := out[name]; !twice {
			out[name] = ports
		}
	}
	for _, p := range s.Pods {
		add(p.Key(), p.Ports)
	}
	for _, h := range s.Hosts {
		add(h.Name, h.Ports)
	}
	return func(name string) []Port { return out[name] }
}
