package id

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Kind is the prefix of a reference: by which property an endpoint is meant.
type Kind string

// The kinds of references, as they are written before the colon. A reference
// without a prefix is of KindLocal.
const (
	KindLocal         Kind = "cilium-local"
	KindCNIAttachment Kind = "cni-attachment-id" // container id ":" interface name
	KindContainer     Kind = "container-id"
	KindPod           Kind = "pod-name" // namespace "/" name
	KindIPv4          Kind = "ipv4"
	KindIPv6          Kind = "ipv6"
)

// Kinds lists all kinds in the order in which they are documented.
func Kinds() []Kind {
	return []Kind{KindLocal, KindCNIAttachment, KindContainer, KindPod, KindIPv4, KindIPv6}
}

// Ref is one parsed reference. Only the field that belongs to Kind is set.
type Ref struct {
	Kind Kind
	ID   uint16     // KindLocal: Min to Max
	Addr netip.Addr // KindIPv4, KindIPv6: no zone, not IPv4-mapped
	Text string     // the other kinds: the part after the prefix
}

// String prints the form that Parse reads, which people give too: of a number the
// number alone.
func (r Ref) String() string {
	switch r.Kind {
	case KindLocal:
		return strconv.Itoa(int(r.ID))
	case KindIPv4, KindIPv6:
		return string(r.Kind) + ":" + r.Addr.String()
	}
	return string(r.Kind) + ":" + r.Text
}

// Attachment returns the key of one interface of one container.
func Attachment(containerID, ifName string) string { return containerID + ":" + ifName }

// PodName returns the key of a pod.
func PodName(namespace, name string) string { return namespace + "/" + name }

// Parse reads a reference: a number, or a prefix of Kinds, a colon and a value.
// The error names what is wrong and the accepted forms.
func Parse(s string) (Ref, error) {
	prefix, value, found := strings.Cut(s, ":")
	if !found {
		n, err := ParseNumber(s)
		return Ref{Kind: KindLocal, ID: n}, err
	}
	r := Ref{Kind: Kind(prefix)}
	var err error
	switch r.Kind {
	case KindLocal:
		r.ID, err = ParseNumber(value)
	case KindIPv4, KindIPv6:
		r.Addr, err = parseAddr(r.Kind, value)
	case KindCNIAttachment:
		container, ifName, ok := strings.Cut(value, ":")
		if !ok || container == "" || ifName == "" {
			err = fmt.Errorf("endpoint reference %q: give container id, colon, interface name", s)
		}
		r.Text = value
	case KindPod:
		ns, name, ok := strings.Cut(value, "/")
		if !ok || ns == "" || name == "" || strings.Contains(name, "/") {
			err = fmt.Errorf("endpoint reference %q: give namespace, slash, pod name", s)
		}
		r.Text = value
	case KindContainer:
		if value == "" {
			err = fmt.Errorf("endpoint reference %q: the container id is empty", s)
		}
		r.Text = value
	default:
		err = fmt.Errorf("endpoint reference %q: prefix %q is not known; give a number or one of %s", s, prefix, kindList())
	}
	if err != nil {
		return Ref{}, err
	}
	return r, nil
}

// ParseNumber reads an endpoint number in decimal, Min to Max.
func ParseNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n < Min || n > Max {
		return 0, fmt.Errorf("endpoint id %q: give a number from %d to %d, or one of %s", s, Min, Max, kindList())
	}
	return uint16(n), nil
}

func parseAddr(kind Kind, s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("endpoint reference %s:%s: %q is no address; write one such as ipv4:10.0.0.7 or ipv6:fd00::7", kind, s, s)
	}
	a = a.Unmap().WithZone("")
	if a.Is4() != (kind == KindIPv4) {
		return netip.Addr{}, fmt.Errorf("endpoint reference %s:%s: the address is of the other family; write ipv4: before an IPv4 address, ipv6: before an IPv6 one", kind, s)
	}
	return a, nil
}

func kindList() string {
	names := make([]string, 0, len(Kinds()))
	for _, k := range Kinds() {
		names = append(names, string(k)+":")
	}
	return strings.Join(names, ", ")
}
