package cases

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// End is one end of a cell as the data plane knows it.
type End struct {
	Name       string // as in Step.Order
	Addr       netip.Addr
	Pod        bool              // a managed pod, whose policy is asked
	Labels     labels.LabelArray // who: those that make the identity
	NamedPorts types.NamedPorts
	Identity   identity.NumericIdentity // who
	Prefix     identity.NumericIdentity // where; 0: no policy names a prefix around the address
}

// Ends is a world with numbers.
type Ends struct {
	ByName   map[string]End
	Index    *policy.Index         // knows every identity and every pod's named ports
	Prefixes map[netip.Prefix]bool // what the policies name; true: a block that matches pods
}

// Numbers gives one number per label set, the same one for as long as it lives.
// The zero value is ready.
type Numbers struct {
	byKey map[string]identity.NumericIdentity
	pods  identity.NumericIdentity // numbers given to pods
	local identity.NumericIdentity // numbers given to prefixes
}

// Of returns the number of a label set.
func (n *Numbers) Of(a labels.LabelArray) identity.NumericIdentity {
	if id, ok := identity.LookupReservedByLabels(a); ok {
		return id
	}
	if id, ok := n.byKey[a.Key()]; ok {
		return id
	}
	if n.byKey == nil {
		n.byKey = map[string]identity.NumericIdentity{}
	}
	id := 256 + n.pods
	if scope := identity.ScopeForLabels(a); scope != identity.ScopeGlobal {
		n.local++
		id = identity.NumericIdentity(scope) | n.local
	} else {
		n.pods++
	}
	n.byKey[a.Key()] = id
	return id
}

// entityAddrs are where tests put the nodes of a world. No case names them.
var entityAddrs = map[string]string{
	labels.NameHost: "192.0.2.1", labels.NameRemoteNode: "192.0.2.2", labels.NameKubeAPIServer: "192.0.2.3",
}

// Ends gives everything in the world its identity and prefix identity, under the
// policies in force, as an agent would.
func (w *World) Ends(n *Numbers) (*Ends, error) {
	e := &Ends{ByName: map[string]End{}}
	ids := identity.ReservedIdentities()
	pods := map[netip.Addr]policy.Pod{}
	for _, p := range w.Pods {
		end, err := w.pod(p, n)
		if err != nil {
			return nil, err
		}
		e.ByName[end.Name] = end
		ids[end.Identity] = end.Labels
		pods[end.Addr] = policy.Pod{Identity: end.Identity, NamedPorts: end.NamedPorts}
	}
	for _, name := range w.Entities {
		a, ok := entityAddrs[name]
		if !ok {
			return nil, fmt.Errorf("entity %q has no address in tests", name)
		}
		who := labels.NewLabelArray(labels.Reserved(name))
		id := n.Of(who)
		e.ByName["ent/"+name] = End{Name: "ent/" + name, Addr: netip.MustParseAddr(a), Identity: id, Labels: ids[id]}
	}
	e.Index, _ = policy.NewIndex(ids).Apply(policy.Events{Pods: pods})
	e.Prefixes = policy.Prefixes(w.Policies(), e.Index)
	where := identity.IdentityMap{}
	for p, matchesPods := range e.Prefixes {
		outside := labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
		where[n.Of(outside)] = outside
		if matchesPods {
			inside := labels.NewLabelArray(labels.CIDRLabel(p))
			where[n.Of(inside)] = inside
		}
	}
	e.Index, _ = e.Index.Apply(policy.Events{Added: where})
	for name, end := range e.ByName {
		if p := longest(e.Prefixes, end.Addr, true); p.IsValid() {
			end.Prefix = n.Of(labels.NewLabelArray(labels.CIDRLabel(p)))
			e.ByName[name] = end
		}
	}
	for _, x := range w.Externals {
		end, err := outside(x, e.Prefixes, n)
		if err != nil {
			return nil, err
		}
		e.ByName[end.Name] = end
	}
	return e, nil
}

func (w *World) pod(p Pod, n *Numbers) (End, error) {
	a, err := netip.ParseAddr(p.IP)
	if err != nil {
		return End{}, fmt.Errorf("pod %s: %w", p.ID(), err)
	}
	all := labels.PodLabels(labels.Pod{
		Namespace: p.Namespace, ServiceAccount: "default", Cluster: w.Cluster,
		Labels: p.Labels, NamespaceLabels: w.Namespaces[p.Namespace],
	})
	who, _ := labels.DefaultFilter().Split(all)
	ports := types.NamedPorts{}
	for _, port := range p.Ports {
		if port.Name == "" {
			continue
		}
		proto, err := wtypes.ParseProto(port.Proto)
		if err != nil {
			return End{}, fmt.Errorf("pod %s: %w", p.ID(), err)
		}
		ports[types.NamedPort{Name: port.Name, Proto: proto}] = port.Port
	}
	return End{Name: p.ID(), Addr: a, Pod: true, Labels: who, NamedPorts: ports, Identity: n.Of(who)}, nil
}

func outside(x External, prefixes map[netip.Prefix]bool, n *Numbers) (End, error) {
	a, err := netip.ParseAddr(x.IP)
	if err != nil {
		return End{}, fmt.Errorf("external %s: %w", x.Name, err)
	}
	e := End{Name: "ext/" + x.Name, Addr: a, Labels: labels.NewLabelArray(labels.WorldLabel(a))}
	if p := longest(prefixes, a, false); p.IsValid() {
		e.Labels = e.Labels.With(labels.CIDRLabel(p))
		e.Prefix = n.Of(e.Labels)
	}
	e.Identity = n.Of(e.Labels)
	return e, nil
}

// longest returns the longest of the prefixes that holds the address; podsOnly
// looks only at those of blocks that match pods.
func longest(prefixes map[netip.Prefix]bool, a netip.Addr, podsOnly bool) netip.Prefix {
	best := netip.Prefix{}
	for p, pods := range prefixes {
		if (pods || !podsOnly) && p.Contains(a) && (!best.IsValid() || p.Bits() > best.Bits()) {
			best = p
		}
	}
	return best
}

// OracleWorld is the same world for policy/oracle, which knows no numbers.
func OracleWorld(e *Ends) *oracle.World {
	w := &oracle.World{}
	for name, end := range e.ByName {
		switch {
		case end.Pod:
			w.Pods = append(w.Pods, oracle.Pod{
				Name: name, Labels: end.Labels, Addrs: []netip.Addr{end.Addr}, NamedPorts: end.NamedPorts})
		case strings.HasPrefix(name, "ent/"):
			w.Nodes = append(w.Nodes, oracle.Node{
				Name: name, Local: end.Identity == identity.ReservedHost, Addrs: []netip.Addr{end.Addr}, Labels: end.Labels})
		}
	}
	return w
}
