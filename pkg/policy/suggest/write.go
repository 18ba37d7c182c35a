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
	wtypes "github.com/weirnet/weir/pkg/types"
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
			peer.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{labels.NamespaceName: e.namespace}}
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
		for _, to := range ciliumParts(r.ports) {
			for _, p := range m.ciliumPeers(s, r) {
				spec.Ingress = append(spec.Ingress, api.IngressRule{ToPorts: to.ports, ICMPs: to.icmps,
					IngressPeers: api.IngressPeers{FromEndpoints: p.endpoints, FromCIDR: p.cidrs, FromEntities: p.entities}})
			}
		}
	}
	for _, r := range out {
		for _, to := range ciliumParts(r.ports) {
			for _, p := range m.ciliumPeers(s, r) {
				spec.Egress = append(spec.Egress, api.EgressRule{ToPorts: to.ports, ICMPs: to.icmps,
					EgressPeers: api.EgressPeers{ToEndpoints: p.endpoints, ToCIDR: p.cidrs, ToEntities: p.entities}})
			}
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

// peerLists is the peers of one element, which has one kind of list.
type peerLists struct {
	endpoints       []metav1.LabelSelector
	cidrs, entities []string
}

func (m *maker) ciliumPeers(s subject, r rule) []peerLists {
	var pods, blocks, others peerLists
	others.entities = append(others.entities, r.world...)
	for _, e := range r.peers {
		switch {
		case e.isPod():
			pods.endpoints = append(pods.endpoints, m.endpoints(s, e))
		case e.entity != "":
			others.entities = append(others.entities, e.entity)
		default:
			blocks.cidrs = append(blocks.cidrs, single(e.addr))
		}
	}
	var out []peerLists
	if len(pods.endpoints) > 0 {
		out = append(out, pods)
	}
	if len(blocks.cidrs) > 0 {
		out = append(out, blocks)
	}
	if len(others.entities) > 0 {
		out = append(out, others)
	}
	return out
}

// endpoints selects pods as a peer; its namespace and cluster where they are not
// the subject's.
func (m *maker) endpoints(s subject, e end) metav1.LabelSelector {
	sel := m.selector(e.group())
	add := func(k, v string) {
		if sel.MatchLabels == nil {
			sel.MatchLabels = map[string]string{}
		}
		sel.MatchLabels["k8s:"+k] = v
	}
	if e.namespace != s.namespace {
		add(labels.KeyPodNamespace, e.namespace)
	}
	if e.cluster != m.cluster {
		add(labels.KeyCluster, e.cluster)
	}
	return sel
}

// portLists is the ports of one element, which has ports or types of ICMP; with
// neither every packet is allowed.
type portLists struct {
	ports []api.PortRule
	icmps []api.ICMPRule
}

// ciliumParts writes up to as many ports and types a member as the API takes.
func ciliumParts(all []port) []portLists {
	if len(all) == 0 {
		return []portLists{{}}
	}
	var to, icmp portLists
	for _, p := range all {
		if !p.proto.IsICMP() {
			if n := len(to.ports); n == 0 || len(to.ports[n-1].Ports) == api.MaxPorts {
				to.ports = append(to.ports, api.PortRule{})
			}
			last := &to.ports[len(to.ports)-1]
			last.Ports = append(last.Ports, api.PortProtocol{Port: fmt.Sprint(p.number), Protocol: p.proto.String()})
			continue
		}
		if n := len(icmp.icmps); n == 0 || len(icmp.icmps[n-1].Fields) == api.MaxICMPFields {
			icmp.icmps = append(icmp.icmps, api.ICMPRule{})
		}
		last := &icmp.icmps[len(icmp.icmps)-1]
		kind, family := intstr.FromInt32(int32(p.number)), api.FamilyIPv4
		if p.proto == wtypes.ProtoICMPv6 {
			family = api.FamilyIPv6
		}
		last.Fields = append(last.Fields, api.ICMPField{Family: family, Type: &kind})
	}
	var out []portLists
	if len(to.ports) > 0 {
		out = append(out, to)
	}
	if len(icmp.icmps) > 0 {
		out = append(out, icmp)
	}
	return out
}
