// +kubebuilder:object:generate=true
// +groupName=cilium.io

package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The names under which objects of this package are written.
const (
	APIVersion      = "cilium.io/v2"
	KindNamespaced  = "CiliumNetworkPolicy"
	KindClusterwide = "CiliumClusterwideNetworkPolicy"
)

// CiliumNetworkPolicy governs pods of its namespace.
//
// +kubebuilder:object:root=true
type CiliumNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec  *Rule  `json:"spec,omitempty"`
	Specs []Rule `json:"specs,omitzero"` // more rules with subjects of their own
}

// CiliumClusterwideNetworkPolicy governs pods of every namespace.
//
// +kubebuilder:object:root=true
type CiliumClusterwideNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec  *Rule  `json:"spec,omitempty"`
	Specs []Rule `json:"specs,omitzero"`
}

// Rule says what the pods that its selector matches may do and may not do. A
// direction whose lists are missing or empty is not governed by the rule.
type Rule struct {
	// EndpointSelector selects the subjects; nil is refused, an empty one
	// selects every pod in scope.
	EndpointSelector *metav1.LabelSelector `json:"endpointSelector,omitempty"`

	Ingress     []IngressRule     `json:"ingress,omitzero"`
	IngressDeny []IngressDenyRule `json:"ingressDeny,omitzero"`
	Egress      []EgressRule      `json:"egress,omitzero"`
	EgressDeny  []EgressDenyRule  `json:"egressDeny,omitzero"`

	EnableDefaultDeny DefaultDeny `json:"enableDefaultDeny,omitzero"`

	// Labels and Description are for people; they change nothing.
	Labels      []RuleLabel `json:"labels,omitzero"`
	Description string      `json:"description,omitempty"`
}

// DefaultDeny says per direction whether what no rule allows is denied. nil:
// yes if the rule has an allow or deny element of that direction.
type DefaultDeny struct {
	Ingress *bool `json:"ingress,omitempty"`
	Egress  *bool `json:"egress,omitempty"`
}

// RuleLabel is a mark on a rule for the tools of its author.
type RuleLabel struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Source string `json:"source,omitempty"`
}

// IngressPeers selects sources. At most one list has members; nil in all is
// anybody, an empty list is nobody.
type IngressPeers struct {
	FromEndpoints []metav1.LabelSelector `json:"fromEndpoints,omitzero"`
	FromCIDR      []string               `json:"fromCIDR,omitzero"`
	FromCIDRSet   []CIDRRule             `json:"fromCIDRSet,omitzero"`
	FromEntities  []string               `json:"fromEntities,omitzero"`
}

// EgressPeers selects destinations, by the rules of IngressPeers.
type EgressPeers struct {
	ToEndpoints []metav1.LabelSelector `json:"toEndpoints,omitzero"`
	ToCIDR      []string               `json:"toCIDR,omitzero"`
	ToCIDRSet   []CIDRRule             `json:"toCIDRSet,omitzero"`
	ToEntities  []string               `json:"toEntities,omitzero"`
}

// IngressRule allows sources to reach ports of the subject. ToPorts nil or
// empty: every port. An element without peers and ports allows nothing.
type IngressRule struct {
	IngressPeers `json:",inline"`
	ToPorts      []PortRule `json:"toPorts,omitzero"`
}

// IngressDenyRule denies what an IngressRule would allow.
type IngressDenyRule struct {
	IngressPeers `json:",inline"`
	ToPorts      []PortRule `json:"toPorts,omitzero"`
}

// EgressRule allows the subject to reach ports of destinations.
type EgressRule struct {
	EgressPeers `json:",inline"`
	ToPorts     []PortRule `json:"toPorts,omitzero"`
}

// EgressDenyRule denies what an EgressRule would allow.
type EgressDenyRule struct {
	EgressPeers `json:",inline"`
	ToPorts     []PortRule `json:"toPorts,omitzero"`
}

// CIDRRule selects the addresses outside the cluster that lie in CIDR and in
// no Except.
type CIDRRule struct {
	CIDR   string   `json:"cidr,omitempty"`
	Except []string `json:"except,omitzero"`
}

// PortRule is a list of up to MaxPorts ports.
type PortRule struct {
	Ports []PortProtocol `json:"ports,omitzero"`
}

// MaxPorts is the most ports that one PortRule may list.
const MaxPorts = 40

// PortProtocol is a port, a range of ports or a named port of one protocol.
type PortProtocol struct {
	// Port is a number from 0 to 65535 or a port's name; "0" is every port.
	Port string `json:"port,omitempty"`
	// EndPort is the last port of a range that starts at Port; 0: Port alone.
	EndPort int32 `json:"endPort,omitempty"`
	// Protocol is TCP, UDP, SCTP or ANY; empty means ANY, which is all three.
	Protocol string `json:"protocol,omitempty"`
}
