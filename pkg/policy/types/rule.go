package types

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/types"
)

// Direction says at which end of a connection a rule applies. The values are
// shared with C (enum direction in bpf/lib/types.h).
type Direction uint8

// A connection is judged twice: leaving its source, entering its destination.
const (
	Ingress Direction = 0
	Egress  Direction = 1
)

// String prints "ingress" or "egress".
func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Verdict is what a rule or a policy says of a connection.
type Verdict uint8

// Deny is the zero value, so that what was never judged is denied.
const (
	Deny Verdict = iota
	Allow
	// Pass leaves the decision to the next tier. It is said by rules and entries
	// only, never of a connection.
	Pass
)

// String prints "allow", "deny" or "pass".
func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case Pass:
		return "pass"
	}
	return "deny"
}

// Tier is a group of rules that is asked before the next one
// (policy.networking.k8s.io, ClusterNetworkPolicySpec.Tier). The zero value is
// that of NetworkPolicy and of the kinds of cilium.io.
type Tier int8

const (
	// TierAdmin is asked first, in the order of priorities and of the rules.
	TierAdmin Tier = -1
	// TierNormal always decides for a pod that one of its policies isolates.
	TierNormal Tier = 0
	// TierBaseline is asked for pods that TierNormal does not isolate, in the order of TierAdmin.
	TierBaseline Tier = 1
)

// Ordered reports whether the first rule that matches decides, whatever it
// says. In TierNormal a deny wins over every allow.
func (t Tier) Ordered() bool { return t != TierNormal }

// String prints "Admin", "NetworkPolicy" or "Baseline", as the API calls them.
func (t Tier) String() string {
	switch {
	case t < TierNormal:
		return "Admin"
	case t > TierNormal:
		return "Baseline"
	}
	return "NetworkPolicy"
}

// RuleKind says what sort of statement a rule number stands for.
type RuleKind uint8

const (
	// KindPolicy is a rule that a user wrote.
	KindPolicy RuleKind = iota
	// KindDefaultDeny denies because the listed policies isolate the pod in this direction.
	KindDefaultDeny
	// KindNotIsolated allows because no policy isolates the pod in this direction.
	KindNotIsolated
	// KindModeNever allows because enforcement is switched off.
	KindModeNever
	// KindModeAlways denies because enforcement is "always" and no rule allows.
	KindModeAlways
	// KindLocalNode allows the local node to reach its own pods.
	KindLocalNode
	// KindInit denies because the pod has no identity from its labels yet.
	KindInit
	// KindEndpointNever is KindModeNever by the endpoint's own mode.
	KindEndpointNever
	// KindEndpointAlways is KindModeAlways by the endpoint's own mode.
	KindEndpointAlways
	// KindClosed denies because the kernel has no room or no number for the other
	// end's prefix; no policy is asked.
	KindClosed
)

// OfEndpoint is the kind where the endpoint's own mode says what k says of the
// node's. Other kinds are the same under both.
func (k RuleKind) OfEndpoint() RuleKind {
	switch k {
	case KindModeNever:
		return KindEndpointNever
	case KindModeAlways:
		return KindEndpointAlways
	}
	return k
}

// Section names the list of a policy that holds a rule.
const (
	SectionIngress     = "ingress"
	SectionIngressDeny = "ingressDeny"
	SectionEgress      = "egress"
	SectionEgressDeny  = "egressDeny"
)

// Resource names the object that rules come from, and where it was read.
type Resource struct {
	Kind      string // "NetworkPolicy", "CiliumNetworkPolicy", ...
	Namespace string // empty for clusterwide kinds
	Name      string
	File      string // path as the source gave it; empty where the object came without a file
	Line      int    // first line of the object in File, from 1; 0 unknown
}

// ID is the resource's key in the repository: kind/namespace/name.
func (r Resource) ID() string { return r.Kind + "/" + r.Namespace + "/" + r.Name }

// String prints "kind namespace/name", or "kind name" for a clusterwide kind.
func (r Resource) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Placed is String with the place behind where there is one: "... (file:line)".
func (r Resource) Placed() string {
	if r.File == "" {
		return r.String()
	}
	return fmt.Sprintf("%s (%s:%d)", r, r.File, r.Line)
}

// Compare orders resources by kind, namespace and name: the order that breaks
// ties between rules of equal precedence.
func (r Resource) Compare(o Resource) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// RuleRef names one rule so that a person can find it.
type RuleRef struct {
	Kind     RuleKind
	Resource Resource   // of KindPolicy
	Section  string     // one of the Section constants; of a rule under specs with its place, "specs[0].ingress"
	Index    int        // position in the section, from 0
	Name     string     // that its author gave it; empty: none
	Line     int        // first line of the rule in Resource.File; 0 unknown
	Isolated []Resource // of KindDefaultDeny: the policies that isolate, sorted
	Log      string     `json:",omitempty"` // what the author wants shown in events of the rule
}

// Compare orders rules by resource, section and index; rules without a
// resource come after those with one.
func (r RuleRef) Compare(o RuleRef) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), r.Resource.Compare(o.Resource),
		cmp.Compare(r.Section, o.Section), cmp.Compare(r.Index, o.Index))
}

// Key is the same for two references to one rule wherever its file has moved
// the line to, and differs for any two rules. It does not change between releases.
func (r RuleRef) Key() string {
	key := fmt.Sprintf("%d|%s|%s|%d", r.Kind, r.Resource.ID(), r.Section, r.Index)
	for _, p := range r.Isolated {
		key += "|" + p.ID()
	}
	return key
}

// String prints one line for people: the policy, the rule and its place.
func (r RuleRef) String() string {
	switch r.Kind {
	case KindPolicy:
		s := fmt.Sprintf("%s %s[%d]", r.Resource, r.Section, r.Index)
		if r.Name != "" {
			s += " " + strconv.Quote(r.Name)
		}
		if r.Resource.File != "" {
			line := r.Line
			if line == 0 {
				line = r.Resource.Line
			}
			s += fmt.Sprintf(" (%s:%d)", r.Resource.File, line)
		}
		return s
	case KindDefaultDeny:
		names := make([]string, len(r.Isolated))
		for i, p := range r.Isolated {
			names[i] = p.Placed()
		}
		return "default deny, because the pod is selected by " + strings.Join(names, ", ")
	case KindNotIsolated:
		return "default allow, because no policy selects the pod in this direction"
	case KindModeNever:
		return "enforcement mode never"
	case KindModeAlways:
		return "enforcement mode always, and no rule allows"
	case KindLocalNode:
		return "the local node may always reach its pods"
	case KindInit:
		return "the pod has no identity from its labels yet"
	case KindEndpointNever:
		return "enforcement never of the endpoint"
	case KindEndpointAlways:
		return "enforcement always of the endpoint, and no rule allows"
	case KindClosed:
		return "the other end's prefix, which has no room in the ipcache map or no identity number and is closed; see: weir status"
	}
	return fmt.Sprintf("rule kind %d", r.Kind)
}

// RuleID is a rule's number in map entries, conntrack entries and events.
// 0 means "no rule": nothing in the map matched.
type RuleID uint32

// Peer selects the other end of a connection. Exactly one of the fields
// Labels, CIDR and Entity is set.
type Peer struct {
	// Labels selects by identity (who). An empty selector matches every
	// identity; the dialect adds the namespace requirement.
	Labels *labels.Selector
	// CIDR selects by address (where).
	CIDR *CIDRPeer
	// Entity is "all": every peer, known or not, both families.
	// Other entities are translated to Labels.
	Entity string
}

// EntityAll is the only entity that is not a label selector.
const EntityAll = "all"

// CIDRPeer selects addresses inside Prefix and outside every Except.
type CIDRPeer struct {
	Prefix netip.Prefix
	Except []netip.Prefix // each inside Prefix, same family
	// Pods says that the block also matches addresses of pods and nodes, as a
	// Kubernetes ipBlock does and a CiliumNetworkPolicy CIDR does not.
	Pods bool
}

// Port selects destination ports.
type Port struct {
	Proto types.Proto // ProtoAny matches every protocol, then Port and Name are unset
	Port  uint16      // first port; 0 with an empty Name means all ports of Proto
	End   uint16      // last port, inclusive; 0 means Port alone; below Port: no port at all
	Name  string      // named port of the destination pod, resolved per pod and protocol
	// ICMPType says that Port is a type of ICMP or ICMPv6, of which 0 is one; then
	// End and Name are unset.
	ICMPType bool
}

// String prints "80/TCP", "80-90/TCP", "http/TCP", "type 8 (EchoRequest)/ICMP", and
// "*/TCP" for every port.
func (p Port) String() string {
	switch {
	case p.Name != "":
		return fmt.Sprintf("%s/%s", p.Name, p.Proto)
	case p.ICMPType:
		kind := fmt.Sprint("type ", p.Port)
		if name := p.Proto.ICMPName(uint8(p.Port)); name != "" {
			kind += " (" + name + ")"
		}
		return fmt.Sprintf("%s/%s", kind, p.Proto)
	case p.Port == 0:
		return "*/" + p.Proto.String()
	case p.End != 0 && p.End != p.Port:
		return fmt.Sprintf("%d-%d/%s", p.Port, p.End, p.Proto)
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Proto)
}

// Rule is one statement about one direction.
type Rule struct {
	Ref       RuleRef
	Direction Direction
	Verdict   Verdict
	Peers     []Peer // nil: anybody; empty: nobody
	Ports     []Port // nil: every port of every protocol; empty: none
	// Tier and Priority order rules; lower is stronger. Of equal ones of
	// TierNormal a deny wins over an allow, of equal ones of the other tiers the
	// first in the order of Ref.
	Tier     Tier
	Priority uint16
}

// Policy is one object after translation.
type Policy struct {
	Resource Resource
	// Subject selects the pods that the policy governs.
	Subject labels.Selector
	// IsolatesIngress and IsolatesEgress turn on default deny for the subjects.
	IsolatesIngress bool
	IsolatesEgress  bool
	Rules           []Rule
}
