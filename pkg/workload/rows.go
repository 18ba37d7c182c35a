package workload

import (
	"net/netip"
	"strings"

	"github.com/weirnet/weir/pkg/types"
)

// Pod is a row of the table "pods".
type Pod struct {
	Namespace      string
	Name           string
	UID            string // empty: the source gave none
	Labels         map[string]string
	Annotations    map[string]string
	NamedPorts     []NamedPort // of all its containers
	Node           string      // name of the node it runs on; empty: not scheduled
	HostNetwork    bool        // it uses the node's own network and addresses
	Phase          string      // Pending, Running, Succeeded, Failed, Unknown or empty
	IPs            []netip.Addr
	ServiceAccount string // empty: none
}

// NamedPort is a container port that has a name.
type NamedPort struct {
	Name  string
	Proto types.Proto
	Port  uint16 // host byte order
}

// Namespace is a row of the table "namespaces".
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Node is a row of the table "nodes".
type Node struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
	Local     bool // the node that this agent runs on
	APIServer bool // no node: whoever has the addresses serves the API of the cluster
}

// Key is namespace/name.
func (p *Pod) Key() string { return PodKey(p.Namespace, p.Name) }

// PodKey is the key of a pod's row.
func PodKey(namespace, name string) string { return namespace + "/" + name }

// Ended reports whether the pod has run to its end. Its addresses may already
// belong to another pod.
func (p *Pod) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// OwnsAddresses reports whether IPs are the pod's own: it has not ended and does
// not use the node's network.
func (p *Pod) OwnsAddresses() bool { return !p.Ended() && !p.HostNetwork }

// TableHeader names the columns of TableRow.
func (p *Pod) TableHeader() []string {
	return []string{"Namespace", "Name", "Node", "Phase", "HostNetwork", "IPs"}
}

// TableRow prints the row for people.
func (p *Pod) TableRow() []string {
	host := ""
	if p.HostNetwork {
		host = "yes"
	}
	return []string{p.Namespace, p.Name, p.Node, p.Phase, host, join(p.IPs)}
}

// TableHeader names the columns of TableRow.
func (n *Namespace) TableHeader() []string { return []string{"Name", "Labels"} }

// TableRow prints the row for people.
func (n *Namespace) TableRow() []string { return []string{n.Name, joinLabels(n.Labels)} }

// TableHeader names the columns of TableRow.
func (n *Node) TableHeader() []string { return []string{"Name", "Local", "Addresses", "Labels"} }

// TableRow prints the row for people.
func (n *Node) TableRow() []string {
	local := ""
	if n.Local {
		local = "yes"
	}
	return []string{n.Name, local, join(n.Addresses), joinLabels(n.Labels)}
}

func join(as []netip.Addr) string {
	out := make([]string, len(as))
	for i, a := range as {
		out[i] = a.String()
	}
	return strings.Join(out, ",")
}
