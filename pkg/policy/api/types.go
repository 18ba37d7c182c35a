// +kubebuilder:object:generate=true
// +groupName=cilium.io

package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The names under which objects of this package are written.
const (
	APIVersion      = "cilium.io/v2"
	APIVersionAlpha = "cilium.io/v2alpha1" // of KindCIDRGroup only, which has the other too
	KindNamespaced  = "CiliumNetworkPolicy"
	KindClusterwide = "CiliumClusterwideNetworkPolicy"
	KindCIDRGroup   = "CiliumCIDRGroup"
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

	Log Log `json:"log,omitzero"`

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

// Log is what events of the rule show.
type Log struct {
	// Value is up to MaxLogValue printable ASCII characters.
	Value string `json:"value,omitempty"`
}

// MaxLogValue is the most characters of a Log's value.
const MaxLogValue = 32

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
	FromNodes     []metav1.LabelSelector `json:"fromNodes,omitzero"` // by labels of Node objects
}

// EgressPeers selects destinations, by the rules of IngressPeers.
type EgressPeers struct {
	ToEndpoints []metav1.LabelSelector `json:"toEndpoints,omitzero"`
	ToCIDR      []string               `json:"toCIDR,omitzero"`
	ToCIDRSet   []CIDRRule             `json:"toCIDRSet,omitzero"`
	ToEntities  []string               `json:"toEntities,omitzero"`
	ToNodes     []metav1.LabelSelector `json:"toNodes,omitzero"`
	ToServices  []Service              `json:"toServices,omitzero"`
}

// IngressRule allows sources to reach ports of the subject. ToPorts and ICMPs nil
// or empty: every port; not both have members. An element without peers, ports
// and ICMPs allows nothing.
type IngressRule struct {
	IngressPeers `json:",inline"`
	ToPorts      []PortRule `json:"toPorts,omitzero"`
	ICMPs        []ICMPRule `json:"icmps,omitzero"`
}

// IngressDenyRule denies what an IngressRule would allow.
type IngressDenyRule struct {
	IngressPeers `json:",inline"`
	ToPorts      []PortRule `json:"toPorts,omitzero"`
	ICMPs        []ICMPRule `json:"icmps,omitzero"`
}

// EgressRule allows the subject to reach ports of destinations.
type EgressRule struct {
	EgressPeers `json:",inline"`
	ToPorts     []PortRule `json:"toPorts,omitzero"`
	ICMPs       []ICMPRule `json:"icmps,omitzero"`
}

// EgressDenyRule denies what an EgressRule would allow.
type EgressDenyRule struct {
	EgressPeers `json:",inline"`
	ToPorts     []PortRule `json:"toPorts,omitzero"`
	ICMPs       []ICMPRule `json:"icmps,omitzero"`
}

// CIDRRule selects the addresses outside the cluster that lie in CIDR, or in a
// block of the groups, and in no Except. Exactly one of the first three is given.
type CIDRRule struct {
	CIDR              string                `json:"cidr,omitempty"`
	CIDRGroupRef      string                `json:"cidrGroupRef,omitempty"`      // name of a CiliumCIDRGroup
	CIDRGroupSelector *metav1.LabelSelector `json:"cidrGroupSelector,omitempty"` // by labels of CiliumCIDRGroups
	Except            []string              `json:"except,omitzero"`
}

// Service selects what stands behind services: the pods of a service that
// selects pods, the addresses of the endpoint slices of one that does not.
// Exactly one of the two is given.
type Service struct {
	K8sService         *ServiceName     `json:"k8sService,omitempty"`
	K8sServiceSelector *ServiceSelector `json:"k8sServiceSelector,omitempty"`
}

// ServiceName names a service; without a namespace those of the name in all.
type ServiceName struct {
	ServiceName string `json:"serviceName,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
}

// ServiceSelector selects services by their labels, in one namespace or in all.
type ServiceSelector struct {
	Selector  *metav1.LabelSelector `json:"selector,omitempty"`
	Namespace string                `json:"namespace,omitempty"`
}

// ICMPRule is a list of up to MaxICMPFields types of ICMP messages.
type ICMPRule struct {
	Fields []ICMPField `json:"fields,omitzero"`
}

// MaxICMPFields is the most fields that one ICMPRule may list.
const MaxICMPFields = 40

// ICMPField is one type of message of one family.
type ICMPField struct {
	// Family is FamilyIPv4 or FamilyIPv6; empty means IPv4.
	Family string `json:"family,omitempty"`
	// Type is a number from 0 to 255 or a name of the family's types. Errors pass
	// with the flow that they quote, whatever rules say of their type.
	Type *intstr.IntOrString `json:"type,omitempty"`
}

// Families of an ICMPField.
const (
	FamilyIPv4 = "IPv4"
	FamilyIPv6 = "IPv6"
)

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

// CiliumCIDRGroup is a list of blocks outside the cluster that policies name.
//
// +kubebuilder:object:root=true
type CiliumCIDRGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CIDRGroupSpec `json:"spec"`
}

// CIDRGroupSpec holds the blocks of a group.
type CIDRGroupSpec struct {
	ExternalCIDRs []string `json:"externalCIDRs,omitzero"`
}
