package suggest

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/types"
)

func (s subject) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: s.name, Namespace: s.namespace}
}

// selector selects a group in its namespace.
func (m *maker) selector(g group) metav1.LabelSelector {
	s := metav1.LabelSelector{}
	for k, v := range g.labels {
		if s.MatchLabels == nil {
			s.MatchLabels = map[string]string{}
		}
		s.MatchLabels[k] = v
	}
	for _, k := range m.besides(g) {
		s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpDoesNotExist})
	}
	return s
}

func (m *maker) networkPolicy(s subject, in, out []rule) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: k8s.KindNetworkPolicy},
		ObjectMeta: s.meta(),
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: m.selector(s.group)},
	}
	if s.judged[types.Ingress] {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	}
	if s.judged[types.Egress] {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	for _, r := range in {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: m.npPeers(s, r), Ports: npPorts(r.ports)})
	}
	for _, r := range out {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: m.npPeers(s, r), Ports: npPorts(r.ports)})
	}
	return p
}

func (m *maker) npPeers(s subject, r rule) []networkingv1.NetworkPolicyPeer {
	var out []networkingv1.NetworkPolicyPeer
	for _, e := range r.peers {
		if !e.isPod() {
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: single(e.addr)}})
			continue
		}
		sel := m.selector(e.group())
		peer := networkingv1.NetworkPolicyPeer{PodSelector: &sel}
		if e.namespace != s.namespace {
			peer.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{nameLabel: e.namespace}}
			if !e.named {
				m.note("the namespace %s lacks the label %s, by which a NetworkPolicy finds it", e.namespace, nameLabel)
			}
		}
		if e.cluster != m.cluster {
			m.note("%s is of the cluster %s, which a NetworkPolicy cannot name", describe(e), e.cluster)
		}
		out = append(out, peer)
	}
	for _, family := range r.world {
		cidr := "0.0.0.0/0"
		if family == labels.NameWorldIPv6 {
			cidr = "::/0"
		}
		m.note("the block %s of a NetworkPolicy matches pods and nodes too", cidr)
		out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}})
	}
	return out
}

func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

func npPorts(ports []port) []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for _, p := range ports {
		proto, number := corev1.Protocol(p.proto.String()), intstr.FromInt32(int32(p.number))
		out = append(out, networkingv1.NetworkPolicyPort{Protocol: &proto, Port: &number})
	}
	return out
}

func (m *maker) ciliumPolicy(s subject, in, out []rule) *api.CiliumNetworkPolicy {
	sel := m.selector(s.group)
	spec := &api.Rule{EndpointSelector: &sel}
	for _, r := range in {
		endpoints, cidrs, entities := m.ciliumPeers(s, r)
		ports := ciliumPorts(r.ports)
		if len(endpoints) > 0 {
			spec.Ingress = append(spec.Ingress, api.IngressRule{IngressPeers: api.IngressPeers{FromEndpoints: endpoints}, ToPorts: ports})
		}
		if len(cidrs) > 0 {
			spec.Ingress = append(spec.Ingress, api.IngressRule{IngressPeers: api.IngressPeers{FromCIDR: cidrs}, ToPorts: ports})
		}
		if len(entities) > 0 {
			spec.Ingress = append(spec.Ingress, api.IngressRule{IngressPeers: api.IngressPeers{FromEntities: entities}, ToPorts: ports})
		}
	}
	for _, r := range out {
		endpoints, cidrs, entities := m.ciliumPeers(s, r)
		ports := ciliumPorts(r.ports)
		if len(endpoints) > 0 {
			spec.Egress = append(spec.Egress, api.EgressRule{EgressPeers: api.EgressPeers{ToEndpoints: endpoints}, ToPorts: ports})
		}
		if len(cidrs) > 0 {
			spec.Egress = append(spec.Egress, api.EgressRule{EgressPeers: api.EgressPeers{ToCIDR: cidrs}, ToPorts: ports})
		}
		if len(entities) > 0 {
			spec.Egress = append(spec.Egress, api.EgressRule{EgressPeers: api.EgressPeers{ToEntities: entities}, ToPorts: ports})
		}
	}
	// A direction that was judged and let nothing pass: {} isolates and matches nobody.
	if s.judged[types.Ingress] && len(spec.Ingress) == 0 {
		spec.Ingress = []api.IngressRule{{}}
	}
	if s.judged[types.Egress] && len(spec.Egress) == 0 {
		spec.Egress = []api.EgressRule{{}}
	}
	return &api.CiliumNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindNamespaced},
		ObjectMeta: s.meta(), Spec: spec,
	}
}

func (m *maker) ciliumPeers(s subject, r rule) (endpoints []metav1.LabelSelector, cidrs, entities []string) {
	entities = append(entities, r.world...)
	for _, e := range r.peers {
		switch {
		case e.isPod():
			sel := m.selector(e.group())
			more := map[string]string{}
			for k, v := range sel.MatchLabels {
				more[k] = v
			}
			if e.namespace != s.namespace {
				more["k8s:"+labels.KeyPodNamespace] = e.namespace
			}
			if e.cluster != m.cluster {
				more["k8s:"+labels.KeyCluster] = e.cluster
			}
			if sel.MatchLabels = more; len(more) == 0 {
				sel.MatchLabels = nil
			}
			endpoints = append(endpoints, sel)
		case e.entity != "":
			entities = append(entities, e.entity)
		default:
			cidrs = append(cidrs, single(e.addr))
		}
	}
	return endpoints, cidrs, entities
}

// ciliumPorts writes up to api.MaxPorts ports a member.
func ciliumPorts(ports []port) []api.PortRule {
	var out []api.PortRule
	for i, p := range ports {
		if i%api.MaxPorts == 0 {
			out = append(out, api.PortRule{})
		}
		last := &out[len(out)-1]
		last.Ports = append(last.Ports, api.PortProtocol{Port: fmt.Sprint(p.number), Protocol: p.proto.String()})
	}
	return out
}
