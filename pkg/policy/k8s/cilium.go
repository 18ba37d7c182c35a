package k8s

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// cilium translates spec and specs. Rules of specs[i] say so in their section.
func (t *translator) cilium(spec *api.Rule, specs []api.Rule) []*types.Policy {
	var out []*types.Policy
	if spec != nil {
		out = append(out, t.ciliumRule(spec, "spec", ""))
	}
	for i := range specs {
		path := fmt.Sprintf("specs[%d]", i)
		out = append(out, t.ciliumRule(&specs[i], path, path+"."))
	}
	if len(out) == 0 {
		t.fail("", "has neither spec nor specs; give one of them")
	}
	return out
}

func (t *translator) ciliumRule(r *api.Rule, path, section string) *types.Policy {
	p := &types.Policy{Resource: t.object.Resource, Subject: t.ciliumSubject(r.EndpointSelector, path+".endpointSelector")}
	in, out := len(r.Ingress)+len(r.IngressDeny), len(r.Egress)+len(r.EgressDeny)
	if in+out == 0 {
		t.fail(path, "has no rule, so it would do nothing; give ingress, ingressDeny, egress or egressDeny "+
			"a member (ingress: [{}] denies everything)")
	}
	p.IsolatesIngress = enabled(r.EnableDefaultDeny.Ingress, in > 0)
	p.IsolatesEgress = enabled(r.EnableDefaultDeny.Egress, out > 0)

	for i, e := range r.Ingress {
		t.element(p, ingressPeers(&e.IngressPeers), ciliumPorts{e.ToPorts, e.ICMPs}, path, section, types.SectionIngress, i)
	}
	for i, e := range r.IngressDeny {
		t.element(p, ingressPeers(&e.IngressPeers), ciliumPorts{e.ToPorts, e.ICMPs}, path, section, types.SectionIngressDeny, i)
	}
	for i, e := range r.Egress {
		t.element(p, egressPeers(&e.EgressPeers), ciliumPorts{e.ToPorts, e.ICMPs}, path, section, types.SectionEgress, i)
	}
	for i, e := range r.EgressDeny {
		t.element(p, egressPeers(&e.EgressPeers), ciliumPorts{e.ToPorts, e.ICMPs}, path, section, types.SectionEgressDeny, i)
	}
	t.logged(p, r.Log.Value, path+".log.value")
	return p
}

// logged gives every rule of the policy the value that its events show.
func (t *translator) logged(p *types.Policy, value, path string) {
	unprintable := func(r rune) bool { return r < ' ' || r > '~' }
	if len(value) > api.MaxLogValue || strings.ContainsFunc(value, unprintable) {
		t.fail(path, "%q is not up to %d printable ASCII characters; shorten it", clip(value), api.MaxLogValue)
	}
	for i := range p.Rules {
		p.Rules[i].Ref.Log = value
	}
}

func enabled(given *bool, otherwise bool) bool {
	if given != nil {
		return *given
	}
	return otherwise
}

// ciliumPeers is the peers of an element of either direction; word is "from" or "to".
type ciliumPeers struct {
	word      string
	endpoints []metav1.LabelSelector
	cidr      []string
	cidrSet   []api.CIDRRule
	entities  []string
	nodes     []metav1.LabelSelector
	services  []api.Service
}

func ingressPeers(p *api.IngressPeers) ciliumPeers {
	return ciliumPeers{"from", p.FromEndpoints, p.FromCIDR, p.FromCIDRSet, p.FromEntities, p.FromNodes, nil}
}

func egressPeers(p *api.EgressPeers) ciliumPeers {
	return ciliumPeers{"to", p.ToEndpoints, p.ToCIDR, p.ToCIDRSet, p.ToEntities, p.ToNodes, p.ToServices}
}

// ciliumPorts is what an element says about the packet beside its peer.
type ciliumPorts struct {
	ports []api.PortRule
	icmps []api.ICMPRule
}

// element translates one member of one of the four lists. Without a peer list
// and without ports it is nobody, without only the peers it is anybody.
func (t *translator) element(p *types.Policy, peers ciliumPeers, ports ciliumPorts, path, prefix, section string, index int) {
	path = fmt.Sprintf("%s.%s[%d]", path, section, index)
	r := types.Rule{Ref: t.ref(prefix+section, index, path), Direction: types.Ingress, Verdict: types.Allow}
	if section == types.SectionEgress || section == types.SectionEgressDeny {
		r.Direction = types.Egress
	}
	if section == types.SectionIngressDeny || section == types.SectionEgressDeny {
		r.Verdict = types.Deny
	}
	r.Peers = t.ciliumPeers(peers, path)
	switch {
	case len(ports.icmps) == 0:
		r.Ports = t.ciliumPorts(ports.ports, path+".toPorts")
	case len(ports.ports) > 0:
		t.fail(path+".icmps", "stands beside toPorts; write them as two elements")
	default:
		r.Ports = t.icmps(ports.icmps, path+".icmps")
	}
	if r.Peers == nil && r.Ports == nil {
		r.Peers = []types.Peer{}
	}
	p.Rules = append(p.Rules, r)
}

// ciliumPeers translates the peers of an element: nil if it has no peer list.
func (t *translator) ciliumPeers(p ciliumPeers, path string) []types.Peer {
	given, filled := false, ""
	for _, list := range []struct {
		name    string
		given   bool
		members int
	}{
		{p.word + "Endpoints", p.endpoints != nil, len(p.endpoints)},
		{p.word + "CIDR", p.cidr != nil, len(p.cidr)},
		{p.word + "CIDRSet", p.cidrSet != nil, len(p.cidrSet)},
		{p.word + "Entities", p.entities != nil, len(p.entities)},
		{p.word + "Nodes", p.nodes != nil, len(p.nodes)},
		{p.word + "Services", p.services != nil, len(p.services)},
	} {
		given = given || list.given
		if list.members == 0 {
			continue
		}
		if filled != "" {
			t.fail(path+"."+list.name, "stands beside %s; write them as two elements", filled)
		}
		filled = list.name
	}
	if !given {
		return nil
	}
	out := make([]types.Peer, 0, len(p.endpoints)+len(p.cidr)+len(p.cidrSet)+len(p.entities))
	for i := range p.endpoints {
		s := t.ciliumEndpoints(&p.endpoints[i], fmt.Sprintf("%s.%sEndpoints[%d]", path, p.word, i))
		out = append(out, types.Peer{Labels: &s})
	}
	for i, c := range p.cidr {
		if b := t.block(c, nil, fmt.Sprintf("%s.%sCIDR[%d]", path, p.word, i), "", false); b != nil {
			out = append(out, types.Peer{CIDR: b})
		}
	}
	for i, c := range p.cidrSet {
		out = append(out, t.cidrRule(&c, fmt.Sprintf("%s.%sCIDRSet[%d]", path, p.word, i))...)
	}
	for i, e := range p.entities {
		out = append(out, t.entity(e, fmt.Sprintf("%s.%sEntities[%d]", path, p.word, i))...)
	}
	for i := range p.nodes {
		out = append(out, t.nodePeers(&p.nodes[i], fmt.Sprintf("%s.%sNodes[%d]", path, p.word, i))...)
	}
	for i, s := range p.services {
		out = append(out, t.servicePeers(s, fmt.Sprintf("%s.%sServices[%d]", path, p.word, i))...)
	}
	return out
}

// ciliumSubject selects the governed pods: of the policy's namespace, or of any
// for the clusterwide kind.
func (t *translator) ciliumSubject(s *metav1.LabelSelector, path string) labels.Selector {
	if s == nil {
		t.fail(path, "is missing; give {} to select every pod in scope")
		return labels.Selector{}
	}
	rs := t.requirements(s, path, ciliumKey)
	ns := t.object.Namespace
	if ns == "" {
		if !demandsReserved(rs) {
			rs = append(rs, inSomeNamespace())
		}
		return labels.NewSelector(rs...)
	}
	for _, key := range []string{labels.KeyPodNamespace, "k8s:" + labels.KeyPodNamespace, "any:" + labels.KeyPodNamespace} {
		if v, ok := s.MatchLabels[key]; ok && v != ns {
			t.fail(path+".matchLabels["+key+"]", "is %q, but the policy governs pods of its own namespace %q only; "+
				"take it out or move the policy there", clip(v), ns)
		}
	}
	return labels.NewSelector(append(rs, inNamespace(ns))...)
}

// ciliumEndpoints translates a peer selector. One that asks for a reserved label
// is taken as it is; any other matches pods only, of the policy's namespace
// unless it says which.
func (t *translator) ciliumEndpoints(s *metav1.LabelSelector, path string) labels.Selector {
	rs := t.requirements(s, path, ciliumKey)
	if demandsReserved(rs) {
		return labels.NewSelector(rs...)
	}
	if t.object.Namespace == "" || setsNamespace(rs) {
		rs = append(rs, inSomeNamespace())
	} else {
		rs = append(rs, inNamespace(t.object.Namespace))
	}
	return labels.NewSelector(t.inCluster(rs)...)
}

// clusterNames are the reserved labels of what belongs to the cluster beside its pods.
var clusterNames = []string{
	labels.NameHost, labels.NameRemoteNode, labels.NameInit, labels.NameIngress,
	labels.NameHealth, labels.NameUnmanaged, labels.NameKubeAPIServer,
}

// entity translates the name of an entity to the peers it stands for.
func (t *translator) entity(name, path string) []types.Peer {
	switch name {
	case api.EntityAll:
		return []types.Peer{{Entity: types.EntityAll}}
	case api.EntityNone:
		return nil
	case api.EntityWorld:
		return reservedPeers(labels.NameWorld, labels.NameWorldIPv4, labels.NameWorldIPv6)
	case api.EntityCluster:
		pods := labels.NewSelector(t.inCluster([]labels.Requirement{inSomeNamespace()})...)
		return append(reservedPeers(clusterNames...), types.Peer{Labels: &pods})
	}
	if slices.Contains(api.Entities(), name) {
		return reservedPeers(name)
	}
	if near := nearest(name, api.Entities()); near != "" {
		t.fail(path, "%q is no entity; did you mean %s?", clip(name), near)
	} else {
		t.fail(path, "%q is no entity; there are %v", clip(name), api.Entities())
	}
	return nil
}

func reservedPeers(names ...string) []types.Peer {
	out := make([]types.Peer, len(names))
	for i, n := range names {
		s := labels.NewSelector(labels.Requirement{Source: labels.SourceReserved, Key: n, Operator: labels.Exists})
		out[i] = types.Peer{Labels: &s}
	}
	return out
}

// ciliumPorts translates toPorts: nil, every port, if it is missing or empty.
func (t *translator) ciliumPorts(rules []api.PortRule, path string) []types.Port {
	if len(rules) == 0 {
		return nil
	}
	out := []types.Port{}
	for i, r := range rules {
		at := fmt.Sprintf("%s[%d].ports", path, i)
		if !t.listed(len(r.Ports), api.MaxPorts, at, "ports", "toPorts", "port") {
			continue
		}
		for j, p := range r.Ports {
			out = append(out, t.ciliumPort(p, fmt.Sprintf("%s[%d]", at, j))...)
		}
	}
	return out
}

// listed checks how much a member of toPorts or icmps lists. false: too much to
// look at.
func (t *translator) listed(n, limit int, path, what, field, every string) bool {
	switch {
	case n == 0:
		t.fail(path, "is empty; list %s, or leave %s out for every %s", what, field, every)
	case n > limit:
		t.fail(path, "has %d members, the most is %d; split it into several members of %s", n, limit, field)
	}
	return n <= limit
}

// ciliumPort translates a port; protocol ANY is three ports.
func (t *translator) ciliumPort(p api.PortProtocol, path string) []types.Port {
	port := types.Port{}
	n, err := strconv.ParseInt(p.Port, 10, 64)
	switch {
	case p.Port == "":
		t.fail(path+".port", `is missing; give a number, a port's name, or "0" for every port`)
	case err != nil:
		port.Name = t.portName(p.Port, path+".port")
		if p.EndPort != 0 {
			t.fail(path+".endPort", "is %d, but port is the name %q; give a number as port", p.EndPort, clip(p.Port))
		}
	case n == 0 && p.EndPort == 0:
	case p.EndPort == 0:
		port.Port, _ = t.portRange(n, nil, path)
	default:
		port.Port, port.End = t.portRange(n, &p.EndPort, path)
	}
	var protos []wtypes.Proto
	switch p.Protocol {
	case "", "ANY":
		protos = []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP}
	case "ICMP", "ICMPv6":
		t.fail(path+".protocol", "%s: has types, not ports; write the types in icmps", p.Protocol)
	case "VRRP", "IGMP":
		t.fail(path+".protocol", "%s: not supported yet; leave toPorts out to allow every protocol", p.Protocol)
	default:
		protos = []wtypes.Proto{t.protocol(p.Protocol, path+".protocol")}
	}
	out := make([]types.Port, len(protos))
	for i, proto := range protos {
		out[i] = port
		out[i].Proto = proto
	}
	return out
}
