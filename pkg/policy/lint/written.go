package lint

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/spell"
)

// written checks a policy by its text alone.
func (l *linter) written(p part) {
	switch s := p.spec.(type) {
	case *networkingv1.NetworkPolicySpec:
		l.networkPolicy(p, s)
	case *api.Rule:
		l.cilium(p, s)
	}
	l.selectors(p)
	l.blocks(p)
}

func (l *linter) networkPolicy(p part, s *networkingv1.NetworkPolicySpec) {
	if len(s.PolicyTypes) == 0 && len(s.Egress) > 0 && s.Ingress == nil {
		l.report(p, NoPolicyTypes, "spec", "write policyTypes: [Egress], or [Ingress, Egress] if all ingress is to be denied",
			"policyTypes is missing, so the pods are also denied all ingress, of which the policy says nothing")
	}
	for _, d := range []struct {
		field string
		rules int
		on    bool
	}{{"ingress", len(s.Ingress), p.policy.IsolatesIngress}, {"egress", len(s.Egress), p.policy.IsolatesEgress}} {
		if d.rules > 0 && !d.on {
			l.report(p, TypesIgnore, "spec."+d.field, "add the direction to policyTypes, or take the rules out",
				"policyTypes is %v, so what %s lists (%s) is not looked at", s.PolicyTypes, d.field, spell.Count(d.rules, "rule"))
		}
	}
	var in, out [][]networkingv1.NetworkPolicyPeer
	for i, r := range s.Ingress {
		in = append(in, r.From)
		l.networkPolicyRule(p, fmt.Sprintf("spec.ingress[%d]", i), "from", r.From, r.Ports)
	}
	for i, r := range s.Egress {
		out = append(out, r.To)
		l.networkPolicyRule(p, fmt.Sprintf("spec.egress[%d]", i), "to", r.To, r.Ports)
	}
	if p.policy.IsolatesIngress {
		l.notOutside(p, "spec.ingress[%d].from[%d]", in)
	}
	if p.policy.IsolatesEgress {
		l.notOutside(p, "spec.egress[%d].to[%d]", out)
	}
}

func (l *linter) networkPolicyRule(p part, path, word string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	if peers != nil && len(peers) == 0 {
		l.report(p, EmptyIsAll, path+"."+word, "take the rule out if nobody is meant; leave "+word+" out if everybody is",
			"%s: [] is everybody, as if it were missing", word)
	}
	if ports != nil && len(ports) == 0 {
		l.report(p, EmptyIsAll, path+".ports", "take the rule out if no port is meant; leave ports out if every port is",
			"ports: [] is every port, as if it were missing")
	}
	for i, port := range ports {
		if port.Protocol != nil || port.Port == nil || port.Port.Type != intstr.Int {
			continue
		}
		use, ok := udpPorts[port.Port.IntVal]
		if !ok || slices.ContainsFunc(ports, func(o networkingv1.NetworkPolicyPort) bool {
			return o.Protocol != nil && *o.Protocol == corev1.ProtocolUDP && o.Port != nil && *o.Port == *port.Port
		}) {
			continue
		}
		l.report(p, PortIsTCP, fmt.Sprintf("%s.ports[%d]", path, i), "add an entry with protocol: UDP, or write protocol: TCP if that alone is meant",
			"port %d without a protocol is TCP, but %s uses UDP", port.Port.IntVal, use)
	}
}

// udpPorts are ports that are used with UDP first of all.
var udpPorts = map[int32]string{
	53: "DNS", 67: "DHCP", 68: "DHCP", 69: "TFTP", 123: "NTP", 161: "SNMP", 162: "SNMP", 500: "IKE", 514: "syslog",
	1812: "RADIUS", 1813: "RADIUS", 3478: "STUN", 4500: "IPsec", 4789: "VXLAN", 5353: "mDNS", 51820: "WireGuard",
}

// notOutside finds namespaceSelector {} where no rule of the direction has a
// block: the author may believe that it is everybody.
func (l *linter) notOutside(p part, path string, rules [][]networkingv1.NetworkPolicyPeer) {
	for _, peers := range rules {
		if len(peers) == 0 || slices.ContainsFunc(peers, func(o networkingv1.NetworkPolicyPeer) bool { return o.IPBlock != nil }) {
			return
		}
	}
	for i, peers := range rules {
		for j, peer := range peers {
			n := peer.NamespaceSelector
			if n == nil || len(n.MatchLabels)+len(n.MatchExpressions) > 0 || peer.PodSelector != nil {
				continue
			}
			l.report(p, NotOutside, fmt.Sprintf(path, i, j),
				"leave the peers out or add ipBlocks if the outside is meant; write podSelector: {} beside it if pods alone are meant",
				"namespaceSelector: {} is every pod of the cluster, but no node and no address outside")
		}
	}
}

func (l *linter) cilium(p part, s *api.Rule) {
	for _, list := range []struct {
		field string
		empty bool
	}{
		{types.SectionIngress, s.Ingress != nil && len(s.Ingress) == 0},
		{types.SectionIngressDeny, s.IngressDeny != nil && len(s.IngressDeny) == 0},
		{types.SectionEgress, s.Egress != nil && len(s.Egress) == 0},
		{types.SectionEgressDeny, s.EgressDeny != nil && len(s.EgressDeny) == 0},
	} {
		if list.empty {
			l.report(p, EmptyRuleList, p.path+"."+list.field, "write "+list.field+": [{}] if all is to be denied, or take the field out",
				"%s: [] says nothing of this direction and denies nothing, unlike in a NetworkPolicy", list.field)
		}
	}
	for _, e := range elements(s) {
		e.path = fmt.Sprintf("%s.%s[%d]", p.path, e.section, e.index)
		if e.emptyList != "" {
			l.report(p, EmptyPeers, e.path+"."+e.emptyList, "leave the field out if everybody is meant, or take the element out",
				"%s: [] is nobody, so the element matches nothing", e.emptyList)
		}
		deny := e.section == types.SectionIngressDeny || e.section == types.SectionEgressDeny
		if e.empty && (deny || e.of > 1) {
			fix := "take it out, or give it peers or ports"
			if deny {
				fix = "write an element with entities [all] to deny everybody"
			}
			l.report(p, EmptyElement, e.path, fix, "{} has neither peers nor ports and matches nobody")
		}
	}
	l.denyOnly(p, types.Ingress, len(s.Ingress), len(s.IngressDeny), s.EnableDefaultDeny.Ingress)
	l.denyOnly(p, types.Egress, len(s.Egress), len(s.EgressDeny), s.EnableDefaultDeny.Egress)
}

// element is a member of one of the four lists of a cilium.io policy.
type element struct {
	section   string
	index, of int
	path      string
	empty     bool   // neither peers nor ports
	emptyList string // a list of peers that is there and empty, where no other has members
}

func elements(s *api.Rule) []element {
	return slices.Concat(elementsOf(types.SectionIngress, s.Ingress), elementsOf(types.SectionIngressDeny, s.IngressDeny),
		elementsOf(types.SectionEgress, s.Egress), elementsOf(types.SectionEgressDeny, s.EgressDeny))
}

// elementsOf looks at the fields of each member: the lists of its embedded peers
// and, beside them, of ports.
func elementsOf[T any](section string, members []T) []element {
	var out []element
	for i := range members {
		e := element{section: section, index: i, of: len(members), empty: true}
		v := reflect.ValueOf(&members[i]).Elem()
		peers := 0
		for f := range v.NumField() {
			if !v.Type().Field(f).Anonymous {
				e.empty = e.empty && (v.Field(f).IsZero() || v.Field(f).Kind() == reflect.Slice && v.Field(f).Len() == 0)
				continue
			}
			lists := v.Field(f)
			for g := range lists.NumField() {
				list := lists.Field(g)
				if list.Kind() != reflect.Slice || list.IsNil() {
					continue
				}
				e.empty = false
				if peers += list.Len(); list.Len() == 0 {
					e.emptyList, _, _ = strings.Cut(lists.Type().Field(g).Tag.Get("json"), ",")
				}
			}
		}
		if peers > 0 {
			e.emptyList = ""
		}
		out = append(out, e)
	}
	return out
}

// denyOnly finds a policy whose denies turn on default deny for pods that no
// policy allows anything.
func (l *linter) denyOnly(p part, dir types.Direction, allows, denies int, given *bool) {
	if denies == 0 || allows > 0 || given != nil {
		return
	}
	for _, o := range l.parts {
		for _, r := range o.rules {
			if r.Direction == dir && r.Verdict != types.Deny && l.mayShare(p, o) {
				return
			}
		}
	}
	l.report(p, DenyOnly, p.path+"."+dir.String()+"Deny",
		"set enableDefaultDeny."+dir.String()+": false if all else is to stay allowed, or write what is allowed",
		"the pods are denied all %s, not only what is listed, since no policy allows any", dir)
}

// mayShare reports whether two policies may govern one pod.
func (l *linter) mayShare(a, b part) bool {
	an, bn := a.object.Namespace, b.object.Namespace
	if an != "" && bn != "" && an != bn {
		return false
	}
	for _, p := range l.world.Pods {
		if a.policy.Subject.Matches(p.Labels) && b.policy.Subject.Matches(p.Labels) {
			return true
		}
	}
	for _, two := range [2][2]labels.Selector{{a.policy.Subject, b.policy.Subject}, {b.policy.Subject, a.policy.Subject}} {
		sets, _ := witnesses(two[0], nil)
		if slices.ContainsFunc(sets, two[1].Matches) {
			return true
		}
	}
	return false
}
