package api

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/types"
)

// Request asks for the endpoint of one CNI attachment. It is checked: addresses
// and hardware addresses are what they say, names fit the kernel.
type Request struct {
	ContainerID    string
	IfName         string // in the pod
	Network        string // name of the CNI network; empty: not known
	HostIfName     string
	HostIfIndex    int // on the node
	IfIndex        int // in the pod; 0 unknown
	MAC            types.MAC
	HostMAC        types.MAC
	MTU            int        // bytes; 0 unknown
	IPv4           netip.Addr // invalid: none; at least one of the two is valid
	IPv6           netip.Addr
	LeaseID        string // stops expiring when the endpoint takes the addresses over
	PodNamespace   string // empty where the runtime names none
	PodName        string
	PodUID         string
	InfraContainer string
	Labels         map[string]string // for a runtime without pod objects
	Netns          string            // path, for people
	Sync           bool              // return when ready
	// Standalone: no pod of Kubernetes, which has a namespace, and a sandbox or a UID.
	Standalone bool
}

// Key is the attachment that the request is about: container:interface.
func (r Request) Key() string { return id.Attachment(r.ContainerID, r.IfName) }

// containerID as the CNI spec 1.1 has it, section "Parameters".
var containerID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// newRequest checks a body. The error names the field.
func newRequest(ref id.Ref, b *gen.EndpointRequest) (Request, error) {
	r := Request{
		ContainerID: b.ContainerID, IfName: b.Interface.ContainerName, HostIfName: b.Interface.HostName,
		HostIfIndex: b.Interface.HostIndex, IfIndex: b.Interface.ContainerIndex, MTU: b.Interface.Mtu, LeaseID: b.LeaseID,
		PodNamespace: b.Pod.Namespace, PodName: b.Pod.Name, PodUID: b.Pod.UID,
		InfraContainer: b.InfraContainerID, Labels: b.Labels, Netns: b.Netns, Sync: b.Sync,
		Network: b.Network, Standalone: b.Pod.Namespace == "" || b.Pod.UID == "" && b.InfraContainerID == "",
	}
	if !containerID.MatchString(r.ContainerID) {
		return r, invalid("containerId", "%q does not fit the CNI specification (letters, digits, and _ . - after the first)", r.ContainerID)
	}
	for _, n := range []struct{ field, name string }{{"interface.containerName", r.IfName}, {"interface.hostName", r.HostIfName}} {
		if err := checkIfName(n.name); err != nil {
			return r, invalid(n.field, "%w", err)
		}
	}
	if ref.Kind != id.KindCNIAttachment || ref.Text != r.Key() {
		return r, invalid("id", "%s does not agree with the body; it must be %s:%s", ref, id.KindCNIAttachment, r.Key())
	}
	if r.HostIfIndex <= 0 {
		return r, invalid("interface.hostIndex", "%d is no interface index", r.HostIfIndex)
	}
	var err error
	if r.MAC, err = unicastMAC(b.Interface.Mac); err != nil {
		return r, invalid("interface.mac", "%w", err)
	}
	if r.HostMAC, err = unicastMAC(b.Interface.HostMac); err != nil {
		return r, invalid("interface.hostMac", "%w", err)
	}
	if r.IPv4, err = podAddr(b.Addressing.Ipv4, true); err != nil {
		return r, invalid("addressing.ipv4", "%w", err)
	}
	if r.IPv6, err = podAddr(b.Addressing.Ipv6, false); err != nil {
		return r, invalid("addressing.ipv6", "%w", err)
	}
	if !r.IPv4.IsValid() && !r.IPv6.IsValid() {
		return r, invalid("addressing", "has neither an IPv4 nor an IPv6 address")
	}
	if ns, given := r.Labels[labels.KeyPodNamespace]; given {
		if problems := validation.IsDNS1123Label(ns); len(problems) > 0 {
			return r, invalid("labels", "%s: %q is no name of a namespace: %s", labels.KeyPodNamespace, ns, problems[0])
		}
	}
	return r, nil
}

func invalid(field, format string, args ...any) error {
	return v1.Errorf(v1.CodeInvalid, "mend the field and send the request again", "field "+field+": "+format, args...)
}

// checkIfName applies the kernel's rule for interface names (dev_valid_name).
func checkIfName(s string) error {
	switch {
	case s == "" || len(s) > 15:
		return fmt.Errorf("interface name %q must have 1 to 15 bytes", s)
	case s == "." || s == "..", strings.ContainsAny(s, "/: \t\n\v\f\r"):
		return fmt.Errorf("interface name %q has a character that the kernel refuses", s)
	}
	return nil
}

func unicastMAC(s string) (types.MAC, error) {
	m, err := types.ParseMAC(s)
	if err != nil {
		return m, err
	}
	if m.IsZero() || m[0]&1 != 0 {
		return m, fmt.Errorf("%q is not the address of one interface", s)
	}
	return m, nil
}

// podAddr reads an address that a pod may have; invalid for empty text.
func podAddr(s string, want4 bool) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	switch {
	case a.Is4() != want4 || a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%s is of the wrong family", s)
	case a.Zone() != "", a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%s is not an address for a pod", s)
	}
	return a, nil
}
