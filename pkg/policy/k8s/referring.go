package k8s

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
)

// cidrRule translates a member of a CIDRSet: a block, or those of groups.
func (t *translator) cidrRule(c *api.CIDRRule, path string) []types.Peer {
	given := ""
	for _, field := range []struct {
		name string
		is   bool
	}{
		{"cidr", c.CIDR != ""}, {"cidrGroupRef", c.CIDRGroupRef != ""}, {"cidrGroupSelector", c.CIDRGroupSelector != nil},
	} {
		if !field.is {
			continue
		}
		if given != "" {
			t.fail(path+"."+field.name, "stands beside %s; write them as two members", given)
		}
		given = field.name
	}
	var groups []*CIDRGroup
	switch given {
	case "cidrGroupRef":
		g := t.refs.Groups[c.CIDRGroupRef]
		t.use(api.KindCIDRGroup, c.CIDRGroupRef)
		if g == nil {
			t.miss(api.KindCIDRGroup, c.CIDRGroupRef, path+".cidrGroupRef")
		} else {
			groups = append(groups, g)
		}
	case "cidrGroupSelector":
		t.use(api.KindCIDRGroup, "")
		s := t.objects(c.CIDRGroupSelector, path+".cidrGroupSelector")
		for _, g := range sorted(t.refs.Groups) {
			if s.Matches(labelArray(g.Labels)) {
				groups = append(groups, g)
			}
		}
	case "":
		t.fail(path, "names no address; give cidr, cidrGroupRef or cidrGroupSelector")
	default:
		if b := t.block(c.CIDR, c.Except, path+".cidr", path+".except", false); b != nil {
			return []types.Peer{{CIDR: b}}
		}
		return nil
	}
	var except []netip.Prefix
	for i, e := range c.Except {
		if p, ok := t.prefix(e, fmt.Sprintf("%s.except[%d]", path, i), false); ok {
			except = append(except, p)
		}
	}
	var out []types.Peer
	for _, g := range groups {
		for _, p := range g.Blocks {
			if b := without(p, except); b != nil {
				out = append(out, types.Peer{CIDR: b})
			}
		}
	}
	return out
}

// without is a block of a group and the excepts that lie inside it. It returns nil
// if an except covers the block: those of a group hold for whatever block it has.
func without(p netip.Prefix, except []netip.Prefix) *types.CIDRPeer {
	b := &types.CIDRPeer{Prefix: p}
	for _, e := range except {
		switch {
		case e.Bits() <= p.Bits() && e.Contains(p.Addr()):
			return nil
		case p.Contains(e.Addr()):
			b.Except = append(b.Except, e)
		}
	}
	return b
}

// objects reads a selector of objects that are no pods.
func (t *translator) objects(s *metav1.LabelSelector, path string) labels.Selector {
	pods := t.filter
	defer func() { t.filter = pods }()
	t.filter = nil // all labels of what is no pod are seen
	return labels.NewSelector(t.requirements(s, path, podKey)...)
}

// nodePeers are the nodes that a selector matches: the local one by its label,
// others by their addresses, since they have one label in common.
func (t *translator) nodePeers(s *metav1.LabelSelector, path string) []types.Peer {
	t.use(KindNode, "")
	selector := t.objects(s, path)
	var out []types.Peer
	for _, n := range sorted(t.refs.Nodes) {
		switch {
		case !selector.Matches(labelArray(n.Labels)):
		case n.Local:
			out = append(out, reservedPeers(labels.NameHost)...)
		default:
			for _, a := range n.Addresses {
				out = append(out, types.Peer{CIDR: &types.CIDRPeer{Prefix: netip.PrefixFrom(a, a.BitLen()), Pods: true}})
			}
		}
	}
	return out
}

// servicePeers is what stands behind the services that a member of toServices names.
func (t *translator) servicePeers(s api.Service, path string) []types.Peer {
	var out []types.Peer
	switch {
	case s.K8sService != nil && s.K8sServiceSelector != nil:
		t.fail(path, "has k8sService and k8sServiceSelector; write them as two members")
	case s.K8sService != nil:
		name, namespace := s.K8sService.ServiceName, s.K8sService.Namespace
		if name == "" {
			t.fail(path+".k8sService.serviceName", "is missing; give the name of a service")
		}
		found := t.services(namespace, func(v *Service) bool { return v.Name == name })
		key, shown := namespace+"/"+name, namespace+"/"+name
		if namespace == "" {
			key, shown = "", name
		}
		t.use(KindService, key)
		if len(found) == 0 {
			t.miss(KindService, shown, path+".k8sService")
		}
		for _, v := range found {
			out = append(out, t.behind(v)...)
		}
	case s.K8sServiceSelector != nil && s.K8sServiceSelector.Selector != nil:
		t.use(KindService, "")
		selector := t.objects(s.K8sServiceSelector.Selector, path+".k8sServiceSelector.selector")
		for _, v := range t.services(s.K8sServiceSelector.Namespace, func(v *Service) bool { return selector.Matches(labelArray(v.Labels)) }) {
			out = append(out, t.behind(v)...)
		}
	case s.K8sServiceSelector != nil:
		t.fail(path+".k8sServiceSelector.selector", "is missing; give {} to select every service")
	default:
		t.fail(path, "names no service; give k8sService or k8sServiceSelector")
	}
	return out
}

// services lists the services of a namespace, or of all, that match.
func (t *translator) services(namespace string, match func(*Service) bool) []*Service {
	return slices.DeleteFunc(sorted(t.refs.Services), func(v *Service) bool {
		return namespace != "" && v.Namespace != namespace || !match(v)
	})
}

// behind is what a service leads to: pods of its own namespace and this cluster
// if it selects any, whoever wrote its selector; else addresses outside.
func (t *translator) behind(v *Service) []types.Peer {
	if len(v.Selector) == 0 {
		out := make([]types.Peer, len(v.Addresses))
		for i, a := range v.Addresses {
			out[i] = types.Peer{CIDR: &types.CIDRPeer{Prefix: netip.PrefixFrom(a, a.BitLen())}}
		}
		return out
	}
	rs := t.inCluster([]labels.Requirement{inNamespace(v.Namespace)})
	for _, k := range slices.Sorted(maps.Keys(v.Selector)) {
		rs = append(rs, labels.Requirement{Source: labels.SourceK8s, Key: k, Operator: labels.In, Values: []string{v.Selector[k]}})
	}
	s := labels.NewSelector(rs...)
	return []types.Peer{{Labels: &s}}
}
