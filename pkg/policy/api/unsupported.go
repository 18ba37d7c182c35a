package api

import "maps"

// Unsupported lists fields of the API that Weir knows and refuses, each with
// what to do instead.
func (Rule) Unsupported() map[string]string {
	return map[string]string{
		"nodeSelector":   "use endpointSelector; policies for nodes come later",
		"authentication": "take it out; mutual authentication comes later",
	}
}

var unsupportedPeers = map[string]string{
	"authentication": "take it out; mutual authentication comes later",
}

func peers(more map[string]string) map[string]string {
	out := maps.Clone(unsupportedPeers)
	maps.Copy(out, more)
	return out
}

// Unsupported lists fields that Weir knows and refuses.
func (IngressPeers) Unsupported() map[string]string {
	return peers(map[string]string{
		"fromGroups":   "list the addresses in fromCIDRSet",
		"fromRequires": "write the requirement into every fromEndpoints selector",
	})
}

// Unsupported lists fields that Weir knows and refuses.
func (EgressPeers) Unsupported() map[string]string {
	return peers(map[string]string{
		"toFQDNs":    "list the addresses in toCIDR until DNS names are supported",
		"toGroups":   "list the addresses in toCIDRSet",
		"toRequires": "write the requirement into every toEndpoints selector",
	})
}

// Unsupported lists fields that Weir knows and refuses.
func (PortRule) Unsupported() map[string]string {
	return map[string]string{
		"rules":          "take it out to allow the whole port; rules on HTTP, DNS and other protocols come later",
		"terminatingTLS": "take it out; TLS inspection comes later",
		"originatingTLS": "take it out; TLS inspection comes later",
		"serverNames":    "take it out; rules on TLS server names come later",
		"listener":       "take it out; redirection to a listener comes later",
	}
}

// Names of entities.
const (
	EntityAll           = "all"
	EntityWorld         = "world"
	EntityCluster       = "cluster"
	EntityHost          = "host"
	EntityRemoteNode    = "remote-node"
	EntityKubeAPIServer = "kube-apiserver"
	EntityInit          = "init"
	EntityUnmanaged     = "unmanaged"
	EntityHealth        = "health"
	EntityIngress       = "ingress"
	EntityNone          = "none"
	EntityWorldIPv4     = "world-ipv4"
	EntityWorldIPv6     = "world-ipv6"
)

// Entities returns all names of entities.
func Entities() []string {
	return []string{
		EntityAll, EntityWorld, EntityWorldIPv4, EntityWorldIPv6, EntityCluster, EntityHost, EntityRemoteNode,
		EntityKubeAPIServer, EntityInit, EntityUnmanaged, EntityHealth, EntityIngress, EntityNone,
	}
}
