package k8s

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	npapi "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// KindClusterNetworkPolicy is the kind of policy.networking.k8s.io, whose
// versions v1alpha2 and v1beta1 have the same fields.
const KindClusterNetworkPolicy = "ClusterNetworkPolicy"

// Limits of the API's validation.
const (
	maxTierPriority = 1000
	maxTierRules    = 25 // of a direction
	maxTierMembers  = 25 // of peers, protocols and networks
	maxRuleName     = 100
)

// clusterNetworkPolicy translates a policy of the tiers Admin and Baseline as the
// API text of policy.networking.k8s.io defines it. It isolates nobody: a pod that
// none of its rules matches is left to the next tier.
func (t *translator) clusterNetworkPolicy(s *npapi.ClusterNetworkPolicySpec) *types.Policy {
	p := &types.Policy{Resource: t.object.Resource, Subject: t.tierSubject(&s.Subject)}
	var tier types.Tier
	switch s.Tier {
	case npapi.AdminTier:
		tier = types.TierAdmin
	case npapi.BaselineTier:
		tier = types.TierBaseline
	default:
		t.fail("spec.tier", "%q is not known; give Admin or Baseline", clip(string(s.Tier)))
	}
	if l := t.object.lines; l != nil && l["spec.priority"] == 0 {
		t.fail("spec.priority", "is missing; give a number from 0 to %d, where 0 is asked first", maxTierPriority)
	}
	if s.Priority < 0 || s.Priority > maxTierPriority {
		t.fail("spec.priority", "is %d; give a number from 0 to %d, where 0 is asked first", s.Priority, maxTierPriority)
	}
	t.atMost(len(s.Ingress), maxTierRules, "spec.ingress")
	t.atMost(len(s.Egress), maxTierRules, "spec.egress")
	add := func(section string, i int, dir types.Direction, name string, action npapi.ClusterNetworkPolicyRuleAction,
		peers func(path string) []types.Peer, protocols []npapi.ClusterNetworkPolicyProtocol) {
		path := fmt.Sprintf("spec.%s[%d]", section, i)
		r := types.Rule{Ref: t.ref(section, i, path), Direction: dir, Tier: tier, Priority: uint16(s.Priority)}
		if len(name) > maxRuleName {
			t.fail(path+".name", "has %d characters; give %d at most", len(name), maxRuleName)
		}
		r.Ref.Name = name
		r.Verdict = t.tierAction(action, path+".action")
		r.Peers = peers(path)
		r.Ports = t.tierProtocols(protocols, path+".protocols")
		p.Rules = append(p.Rules, r)
	}
	for i := range s.Ingress {
		r := &s.Ingress[i]
		add(types.SectionIngress, i, types.Ingress, r.Name, r.Action, func(path string) []types.Peer { return t.tierSources(r.From, path+".from") }, r.Protocols)
	}
	for i := range s.Egress {
		r := &s.Egress[i]
		add(types.SectionEgress, i, types.Egress, r.Name, r.Action, func(path string) []types.Peer { return t.tierDestinations(r, path) }, r.Protocols)
	}
	return p
}

func (t *translator) atMost(n, limit int, path string) {
	if n > limit {
		t.fail(path, "has %d members, the most is %d; split it", n, limit)
	}
}

// tierSubject selects pods, never those that use the network of their node.
func (t *translator) tierSubject(s *npapi.ClusterNetworkPolicySubject) labels.Selector {
	const path = "spec.subject"
	switch {
	case s.Namespaces != nil && s.Pods != nil:
		t.fail(path, "has namespaces and pods; give one of them")
	case s.Namespaces != nil:
		return labels.NewSelector(append(t.requirements(s.Namespaces, path+".namespaces", namespaceKey), inSomeNamespace())...)
	case s.Pods != nil:
		return labels.NewSelector(t.namespacedPod(s.Pods, path+".pods")...)
	default:
		t.fail(path, "selects nothing; give namespaces ({} is all of them) or pods")
	}
	return labels.Selector{}
}

func (t *translator) namespacedPod(p *npapi.NamespacedPod, path string) []labels.Requirement {
	rs := t.requirements(&p.NamespaceSelector, path+".namespaceSelector", namespaceKey)
	rs = append(rs, t.requirements(&p.PodSelector, path+".podSelector", podKey)...)
	return append(rs, inSomeNamespace())
}

func (t *translator) tierAction(a npapi.ClusterNetworkPolicyRuleAction, path string) types.Verdict {
	switch a {
	case npapi.ClusterNetworkPolicyRuleActionAccept:
		return types.Allow
	case npapi.ClusterNetworkPolicyRuleActionDeny:
		return types.Deny
	case npapi.ClusterNetworkPolicyRuleActionPass:
		return types.Pass
	}
	t.fail(path, "%q is not known; give Accept, Deny or Pass", clip(string(a)))
	return types.Deny
}

func (t *translator) tierSources(from []npapi.ClusterNetworkPolicyIngressPeer, path string) []types.Peer {
	t.tierPeerCount(len(from), path)
	var out []types.Peer
	for i := range from {
		at := fmt.Sprintf("%s[%d]", path, i)
		given := t.oneOf(at, "namespaces or pods", from[i].Namespaces != nil, from[i].Pods != nil)
		if given {
			out = append(out, t.tierPods(from[i].Namespaces, from[i].Pods, at))
		}
	}
	return out
}

func (t *translator) tierDestinations(r *npapi.ClusterNetworkPolicyEgressRule, path string) []types.Peer {
	t.tierPeerCount(len(r.To), path+".to")
	named := false
	for _, p := range r.Protocols {
		named = named || p.DestinationNamedPort != ""
	}
	var out []types.Peer
	for i := range r.To {
		to, at := &r.To[i], fmt.Sprintf("%s.to[%d]", path, i)
		if to.DomainNames != nil {
			t.fail(at+".domainNames", "is not supported yet; list the addresses in networks until DNS names are supported")
			continue
		}
		if !t.oneOf(at, "namespaces, pods, nodes or networks", to.Namespaces != nil, to.Pods != nil, to.Nodes != nil, to.Networks != nil) {
			continue
		}
		if named && (to.Nodes != nil || to.Networks != nil) {
			t.fail(at, "stands beside a destinationNamedPort, and only pods name ports; write them as two rules")
		}
		switch {
		case to.Nodes != nil:
			out = append(out, t.nodePeers(to.Nodes, at+".nodes")...)
		case to.Networks != nil:
			out = append(out, t.tierNetworks(to.Networks, at+".networks")...)
		default:
			out = append(out, t.tierPods(to.Namespaces, to.Pods, at))
		}
	}
	if out == nil {
		out = []types.Peer{} // nodes that are not there: nobody
	}
	return out
}

func (t *translator) tierPeerCount(n int, path string) {
	if n == 0 {
		t.fail(path, "is missing or empty; list whom the rule is about (namespaces: {} is every pod)")
	}
	t.atMost(n, maxTierMembers, path)
}

// oneOf reports whether exactly one field is set.
func (t *translator) oneOf(path, fields string, set ...bool) bool {
	n := 0
	for _, is := range set {
		if is {
			n++
		}
	}
	if n != 1 {
		t.fail(path, "sets %d fields; give one of %s", n, fields)
	}
	return n == 1
}

func (t *translator) tierPods(namespaces *metav1.LabelSelector, pods *npapi.NamespacedPod, path string) types.Peer {
	var rs []labels.Requirement
	if pods != nil {
		rs = t.namespacedPod(pods, path+".pods")
	} else {
		rs = append(t.requirements(namespaces, path+".namespaces", namespaceKey), inSomeNamespace())
	}
	s := labels.NewSelector(t.inCluster(rs)...)
	return types.Peer{Labels: &s}
}

// tierNetworks also matches the addresses of pods and nodes, as the API text says.
func (t *translator) tierNetworks(networks []npapi.CIDR, path string) []types.Peer {
	if len(networks) == 0 {
		t.fail(path, "is empty; list blocks like 10.0.0.0/8")
	}
	t.atMost(len(networks), maxTierMembers, path)
	var out []types.Peer
	for i, n := range networks {
		at := fmt.Sprintf("%s[%d]", path, i)
		b := t.block(string(n), nil, at, "", true)
		if b == nil {
			continue
		}
		if p, err := netip.ParsePrefix(string(n)); err == nil && p != p.Masked() {
			t.fail(at, "%q has bits behind its length; write %s", clip(string(n)), p.Masked())
		}
		out = append(out, types.Peer{CIDR: b})
	}
	return out
}

// tierProtocols translates protocols: missing is every port of every protocol.
func (t *translator) tierProtocols(ps []npapi.ClusterNetworkPolicyProtocol, path string) []types.Port {
	if ps == nil {
		return nil
	}
	if len(ps) == 0 {
		t.fail(path, "is empty; leave it out for every protocol")
	}
	t.atMost(len(ps), maxTierMembers, path)
	out := []types.Port{}
	for i := range ps {
		p, at := &ps[i], fmt.Sprintf("%s[%d]", path, i)
		if !t.oneOf(at, "tcp, udp, sctp or destinationNamedPort", p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.DestinationNamedPort != "") {
			continue
		}
		switch {
		case p.TCP != nil:
			out = append(out, t.tierPort(wtypes.ProtoTCP, p.TCP.DestinationPort, at+".tcp.destinationPort"))
		case p.UDP != nil:
			out = append(out, t.tierPort(wtypes.ProtoUDP, p.UDP.DestinationPort, at+".udp.destinationPort"))
		case p.SCTP != nil:
			out = append(out, t.tierPort(wtypes.ProtoSCTP, p.SCTP.DestinationPort, at+".sctp.destinationPort"))
		default:
			name := t.portName(p.DestinationNamedPort, at+".destinationNamedPort")
			for _, proto := range []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP} {
				out = append(out, types.Port{Proto: proto, Name: name})
			}
		}
	}
	return out
}

func (t *translator) tierPort(proto wtypes.Proto, p *npapi.Port, path string) types.Port {
	port := types.Port{Proto: proto}
	switch {
	case p == nil: // every port
	case p.Range != nil && p.Number != 0:
		t.fail(path, "has number and range; give one of them")
	case p.Range == nil:
		if p.Number < 1 || p.Number > 65535 {
			t.fail(path+".number", "is %d; give a number from 1 to 65535", p.Number)
		}
		port.Port = uint16(p.Number)
	case p.Range.Start < 1 || p.Range.End > 65535 || p.Range.Start >= p.Range.End:
		t.fail(path+".range", "is %d to %d; give numbers from 1 to 65535, the start below the end", p.Range.Start, p.Range.End)
	default:
		port.Port, port.End = uint16(p.Range.Start), uint16(p.Range.End)
	}
	return port
}
