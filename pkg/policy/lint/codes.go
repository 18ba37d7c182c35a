package lint

// Code is a kind of finding.
type Code struct {
	ID    string // "WL101", never given to anything else
	Name  string // short, with hyphens
	Short string // one sentence
}

// The codes. Those of a released version stay as they are.
var (
	Refused       = Code{"WL001", "refused", "The file or object is refused, so it is not in force at all."}
	ExceptOutside = Code{"WL002", "except-outside", "An except does not lie inside its block, so the object is refused."}
	UnknownCode   = Code{"WL003", "unknown-code", "The annotation weir/lint-ignore names a code that there is none of."}

	EmptyRuleList     = Code{"WL101", "empty-rule-list", "An empty list of rules in a cilium.io policy governs nothing; in a NetworkPolicy it denies."}
	EmptyPeers        = Code{"WL102", "empty-peers", "An empty list of peers in a cilium.io policy is nobody; in a NetworkPolicy it is everybody."}
	EmptyElement      = Code{"WL103", "empty-element", "An element {} of a cilium.io policy matches nobody; in a NetworkPolicy it matches everybody."}
	EmptyIsAll        = Code{"WL104", "empty-is-all", "An empty from, to or ports of a NetworkPolicy is everybody or every port."}
	NoPolicyTypes     = Code{"WL105", "no-policy-types", "A NetworkPolicy with egress rules and without policyTypes also denies all ingress."}
	TypesIgnore       = Code{"WL106", "types-ignore-rules", "The rules of a direction that policyTypes does not list are ignored."}
	PortIsTCP         = Code{"WL107", "port-is-tcp", "A port of a NetworkPolicy without a protocol is TCP, and this one is used with UDP."}
	NotOutside        = Code{"WL108", "not-outside", "namespaceSelector {} is every pod of the cluster, no node and nothing outside."}
	DenyOnly          = Code{"WL109", "deny-only", "A policy that only denies turns on default deny too, and nothing allows."}
	CIDROfPods        = Code{"WL110", "cidr-of-pods", "A CIDR of a cilium.io policy covers addresses of pods or nodes, which it does not match."}
	ExceptIsNoDeny    = Code{"WL111", "except-is-no-deny", "Another rule allows what an except leaves out."}
	NothingLeft       = Code{"WL112", "nothing-left", "The excepts of a block leave nothing of it."}
	Contradiction     = Code{"WL113", "contradiction", "A selector contradicts itself and matches nothing."}
	NoNamespace       = Code{"WL201", "no-namespace", "No namespace that is known matches."}
	NoSubject         = Code{"WL202", "no-subject", "The policy selects none of the pods that are known."}
	NoPeer            = Code{"WL203", "no-peer", "A peer selects none of the pods that are known."}
	OtherNamespace    = Code{"WL204", "other-namespace", "A peer selects pods of the policy's own namespace, and only other namespaces have such pods."}
	UnknownPort       = Code{"WL205", "unknown-port", "No pod that the rule is about gives a port this name."}
	HostNetworkOnly   = Code{"WL206", "host-network-only", "The policy selects only pods of the host network, which policies do not govern."}
	NoReference       = Code{"WL207", "no-reference", "The policy names a service, a group of addresses or a label that nothing has."}
	NoNamespaceObject = Code{"WL208", "no-namespace-object", "Pods live in a namespace that has no Namespace object, while others have one: no selector of namespaces matches it."}

	Overridden = Code{"WL301", "overridden", "A deny decides everything that the rule would allow."}
	Shadowed   = Code{"WL302", "shadowed", "Other rules decide everything that the rule is about."}
)

// Codes returns all codes, in order.
func Codes() []Code {
	return []Code{
		Refused, ExceptOutside, UnknownCode,
		EmptyRuleList, EmptyPeers, EmptyElement, EmptyIsAll, NoPolicyTypes, TypesIgnore, PortIsTCP, NotOutside, DenyOnly,
		CIDROfPods, ExceptIsNoDeny, NothingLeft, Contradiction,
		NoNamespace, NoSubject, NoPeer, OtherNamespace, UnknownPort, HostNetworkOnly, NoReference, NoNamespaceObject,
		Overridden, Shadowed,
	}
}
