package k8s

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// networkPolicy translates a NetworkPolicy as the API text of
// networking.k8s.io/v1 defines it.
func (t *translator) networkPolicy(s *networkingv1.NetworkPolicySpec) *types.Policy {
	ns := t.object.Namespace
	subject := append(t.requirements(&s.PodSelector, "spec.podSelector", podKey), inNamespace(ns))
	p := &types.Policy{Resource: t.object.Resource, Subject: labels.NewSelector(subject...)}
	p.IsolatesIngress, p.IsolatesEgress = t.policyTypes(s)
	for i, r := range s.Ingress {
		path := fmt.Sprintf("spec.ingress[%d]", i)
		rule := types.Rule{Ref: t.ref(types.SectionIngress, i, path), Direction: types.Ingress, Verdict: types.Allow}
		rule.Peers = t.peers(r.From, path+".from")
		rule.Ports = t.ports(r.Ports, path+".ports")
		if p.IsolatesIngress {
			p.Rules = append(p.Rules, rule)
		}
	}
	for i, r := range s.Egress {
		path := fmt.Sprintf("spec.egress[%d]", i)
		rule := types.Rule{Ref: t.ref(types.SectionEgress, i, path), Direction: types.Egress, Verdict: types.Allow}
		rule.Peers = t.peers(r.To, path+".to")
		rule.Ports = t.ports(r.Ports, path+".ports")
		if p.IsolatesEgress {
			p.Rules = append(p.Rules, rule)
		}
	}
	return p
}

// policyTypes says which directions the policy is about. Without the field:
// ingress always, egress if there is a rule for it. The rules of the other
// direction then mean nothing, to this policy's pods or to other policies.
func (t *translator) policyTypes(s *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(s.PolicyTypes) == 0 {
		return true, len(s.Egress) > 0
	}
	for i, pt := range s.PolicyTypes {
		switch pt {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			t.fail(fmt.Sprintf("spec.policyTypes[%d]", i), "%q is not known; give Ingress or Egress", clip(string(pt)))
		}
	}
	return ingress, egress
}

// peers translates from or to; a missing list and an empty one are both anybody.
func (t *translator) peers(ps []networkingv1.NetworkPolicyPeer, path string) []types.Peer {
	if len(ps) == 0 {
		return nil
	}
	out := make([]types.Peer, 0, len(ps))
	for i, p := range ps {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case p.IPBlock != nil:
			if p.PodSelector != nil || p.NamespaceSelector != nil {
				t.fail(at, "has an ipBlock and a selector; write them as two peers")
			}
			if b := t.block(p.IPBlock.CIDR, p.IPBlock.Except, at+".ipBlock.cidr", at+".ipBlock.except", true); b != nil {
				out = append(out, types.Peer{CIDR: b})
			}
		case p.PodSelector == nil && p.NamespaceSelector == nil:
			t.fail(at, "selects nobody; give podSelector, namespaceSelector or ipBlock, or leave the list empty for anybody")
		default:
			out = append(out, t.podPeer(p, at))
		}
	}
	return out
}

// podPeer never matches a host or the outside: it asks for a namespace (B16).
func (t *translator) podPeer(p networkingv1.NetworkPolicyPeer, path string) types.Peer {
	rs := []labels.Requirement{inNamespace(t.object.Namespace)}
	if p.NamespaceSelector != nil {
		rs = append(t.requirements(p.NamespaceSelector, path+".namespaceSelector", namespaceKey), inSomeNamespace())
	}
	if p.PodSelector != nil {
		rs = append(rs, t.requirements(p.PodSelector, path+".podSelector", podKey)...)
	}
	s := labels.NewSelector(t.inCluster(rs)...)
	return types.Peer{Labels: &s}
}

// ports translates a list of ports; missing and empty are every port.
func (t *translator) ports(ps []networkingv1.NetworkPolicyPort, path string) []types.Port {
	if len(ps) == 0 {
		return nil
	}
	out := make([]types.Port, 0, len(ps))
	for i, p := range ps {
		at := fmt.Sprintf("%s[%d]", path, i)
		port := types.Port{Proto: wtypes.ProtoTCP}
		if p.Protocol != nil {
			port.Proto = t.protocol(string(*p.Protocol), at+".protocol")
		}
		switch {
		case p.Port == nil:
			if p.EndPort != nil {
				t.fail(at+".endPort", "is %d, but there is no port; give the first port of the range", *p.EndPort)
			}
		case p.Port.Type == intstr.String && p.Port.IntValue() != 0:
			t.fail(at+".port", "%q is text; write the number without quotes", clip(p.Port.StrVal))
		case p.Port.Type == intstr.String:
			port.Name = t.portName(p.Port.StrVal, at+".port")
			if p.EndPort != nil {
				t.fail(at+".endPort", "is %d, but port is the name %q; give a number as port", *p.EndPort, clip(p.Port.StrVal))
			}
		default:
			port.Port, port.End = t.portRange(int64(p.Port.IntVal), p.EndPort, at)
		}
		out = append(out, port)
	}
	return out
}

// protocol reads the protocol of a NetworkPolicy.
func (t *translator) protocol(name, path string) wtypes.Proto {
	switch corev1.Protocol(name) {
	case corev1.ProtocolTCP:
		return wtypes.ProtoTCP
	case corev1.ProtocolUDP:
		return wtypes.ProtoUDP
	case corev1.ProtocolSCTP:
		return wtypes.ProtoSCTP
	}
	problem := "%q is not known; give TCP, UDP or SCTP"
	if up := strings.ToUpper(name); up != name && (up == "TCP" || up == "UDP" || up == "SCTP") {
		problem = "%q is not known; write it in capitals: " + up
	}
	t.fail(path, problem, clip(name))
	return wtypes.ProtoTCP
}
