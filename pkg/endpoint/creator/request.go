package creator

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/types"
)

// Request asks for one endpoint. The field names in errors are those of the API.
type Request struct {
	ContainerID        string
	ContainerInterface string
	Network            string // name of the CNI network; may be empty
	NetNS              string // path; may be empty
	HostInterface      string
	HostIfIndex        int
	PeerIndex          int       // of the pod's end; 0: not known
	MAC                types.MAC // inside the pod
	HostMAC            types.MAC // host side
	IPv4               netip.Addr
	IPv6               netip.Addr // at least one of the two
	Pool               string
	PodNamespace       string // empty: that of the labels, or the configured one
	PodName            string
	PodUID             string
	// Labels stand for those of the Pod object where the runtime has none.
	// nil: none were given.
	Labels map[string]string
	// Standalone says that the runtime has no Pod object: nothing is waited for.
	Standalone bool
	// Wait makes Create return only when the endpoint is ready.
	Wait bool
}

// InvalidError says which field of a request is wrong.
type InvalidError struct {
	Field  string
	Reason string
}

// Error names the field and what to give instead.
func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

// maxName is the longest name of a network interface (IFNAMSIZ less one).
const maxName = 15

// Validate checks the request by itself. The error is an InvalidError.
func (r *Request) Validate() error {
	invalid := func(field, format string, args ...any) error {
		return &InvalidError{field, fmt.Sprintf(format, args...)}
	}
	switch {
	case r.ContainerID == "" || strings.ContainsAny(r.ContainerID, ":/ "):
		return invalid("container-id", "%q is not a container id; give a name without ':', '/' and blanks", r.ContainerID)
	case r.ContainerInterface == "" || len(r.ContainerInterface) > maxName || strings.ContainsAny(r.ContainerInterface, "/: "):
		return invalid("container-interface-name", "%q is not an interface name of 1 to %d characters", r.ContainerInterface, maxName)
	case r.HostInterface == "" || len(r.HostInterface) > maxName || strings.ContainsAny(r.HostInterface, "/: "):
		return invalid("interface-name", "%q is not an interface name of 1 to %d characters", r.HostInterface, maxName)
	case r.HostIfIndex <= 0:
		return invalid("interface-index", "%d; give the index of the host side of the link", r.HostIfIndex)
	case r.MAC.IsZero():
		return invalid("mac", "missing; give the hardware address inside the pod")
	case r.HostMAC.IsZero():
		return invalid("host-mac", "missing; give the hardware address of the host side")
	case !r.IPv4.IsValid() && !r.IPv6.IsValid():
		return invalid("addressing", "no address; give an IPv4 or an IPv6 address, or both")
	case r.IPv4.IsValid() && (!r.IPv4.Is4() || !usable(r.IPv4)):
		return invalid("addressing.ipv4", "%s is not an IPv4 address of a pod", r.IPv4)
	case r.IPv6.IsValid() && (!r.IPv6.Is6() || r.IPv6.Is4In6() || r.IPv6.Zone() != "" || !usable(r.IPv6)):
		return invalid("addressing.ipv6", "%s is not an IPv6 address of a pod", r.IPv6)
	case strings.Contains(r.PodName, "/") || strings.Contains(r.PodNamespace, "/"):
		return invalid("pod-name", "%q in %q holds a slash", r.PodName, r.PodNamespace)
	}
	for k := range r.Labels {
		if k == "" || strings.HasPrefix(k, labels.SourceReserved+":") {
			return invalid("labels", "%q is not a label that a workload may have", k)
		}
	}
	return nil
}

func usable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !a.IsLinkLocalUnicast()
}

func (r *Request) row() endpoint.Row {
	return endpoint.Row{
		Link: endpoint.Link{
			ContainerID: r.ContainerID, ContainerInterface: r.ContainerInterface, Network: r.Network, NetNS: r.NetNS,
			HostInterface: r.HostInterface, IfIndex: r.HostIfIndex, PeerIndex: r.PeerIndex, MAC: r.MAC, NodeMAC: r.HostMAC,
			IPv4: r.IPv4, IPv6: r.IPv6, Pool: r.Pool,
		},
		Pod:           endpoint.Pod{Namespace: r.PodNamespace, Name: r.PodName, UID: r.PodUID},
		RequestLabels: r.Labels,
		Standalone:    r.Standalone,
	}
}
