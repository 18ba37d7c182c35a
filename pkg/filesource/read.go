package filesource

import (
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/testfile"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/pkg/workload"
)

// contents is what one file holds.
type contents struct {
	pods       []*workload.Pod
	namespaces []*workload.Namespace
	nodes      []*workload.Node
	policies   map[string]*translated          // by resource id
	ports      map[string][]workload.NamedPort // every container port by pod key, those without a name too
	groups     []*k8s.CIDRGroup
	services   []*k8s.Service // without addresses
	slices     []*endpointSlice
	lines      map[string]int // by object id
	order      []string       // object ids as they stand
}

// translated is a policy object and its translation, at first without references.
type translated struct {
	object k8s.Object
	k8s.Translation
}

func newContents() *contents {
	return &contents{policies: map[string]*translated{}, ports: map[string][]workload.NamedPort{}, lines: map[string]int{}}
}

// Options says how objects are read.
type Options struct {
	ClusterName string         // of the pods that policies select
	Labels      *labels.Filter // of the agent; nil: every label makes identities
	NodeName    string         // the Node object of this name is the local node
}

// translation is how policies are translated that may name these references.
func (o Options) translation(r *k8s.References) k8s.Options {
	return k8s.Options{ClusterName: o.ClusterName, Labels: o.Labels, References: r}
}

// parse reads a file's text. On an error nothing of the file counts.
func parse(text []byte, file string, o Options) (*contents, error) {
	docs, err := k8s.Split(text, file)
	errs := []error{err}
	c := newContents()
	for _, d := range docs {
		if err := c.add(d, o); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *contents) add(d k8s.Document, o Options) error {
	switch {
	case testfile.Is(d): // weir policy test reads them
		return nil
	case d.IsPolicy():
		return c.addPolicy(d, o)
	case d.Kind == api.KindCIDRGroup:
		return c.addGroup(d)
	case d.APIVersion == "discovery.k8s.io/v1" && d.Kind == "EndpointSlice":
		return c.addSlice(d)
	case d.APIVersion != "v1":
	case d.Kind == "Pod":
		return c.addPod(d)
	case d.Kind == "Namespace":
		return c.addNamespace(d)
	case d.Kind == "Node":
		return c.addNode(d, o)
	case d.Kind == k8s.KindService:
		return c.addService(d)
	}
	return problem(d, "kind", fmt.Sprintf("%s (%s) is not read from a folder; it takes Pod, Namespace, Node, Service, "+
		"EndpointSlice, CiliumCIDRGroup and policies; keep it in another folder", d.Kind, d.APIVersion))
}

func problem(d k8s.Document, path, text string) error {
	return &k8s.FieldError{File: d.File, Line: d.Line, Kind: d.Kind, Namespace: d.Namespace, Name: d.Name, Path: path, Problem: text}
}

// note remembers an object's id and refuses it if the file has it already.
func (c *contents) note(d k8s.Document, id string) error {
	if line, twice := c.lines[id]; twice {
		return problem(d, "metadata.name", fmt.Sprintf("is taken by the object in line %d; give one of them another name", line))
	}
	c.lines[id] = d.Line
	c.order = append(c.order, id)
	return nil
}

func (c *contents) addPolicy(d k8s.Document, o Options) error {
	obj, err := d.Policy()
	if err != nil {
		return err
	}
	tr, err := k8s.TranslateTraced(obj, o.translation(nil))
	if err != nil {
		return err
	}
	if err := c.note(d, obj.ID()); err != nil {
		return err
	}
	c.policies[obj.ID()] = &translated{obj, tr}
	return nil
}

func (c *contents) addPod(d k8s.Document) error {
	var p corev1.Pod
	if err := d.Decode(&p); err != nil {
		return err
	}
	if err := named(d, &p.ObjectMeta); err != nil {
		return err
	}
	row := &workload.Pod{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Labels: p.Labels, Annotations: p.Annotations,
		Node: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, Phase: string(p.Status.Phase), ServiceAccount: p.Spec.ServiceAccountName,
	}
	if err := c.addPorts(d, row, &p); err != nil {
		return err
	}
	ips := p.Status.PodIPs
	if len(ips) == 0 && p.Status.PodIP != "" {
		ips = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	for i, ip := range ips {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil || a.Zone() != "" {
			return problem(d, fmt.Sprintf("status.podIPs[%d].ip", i), fmt.Sprintf("%q is not an IP address", ip.IP))
		}
		row.IPs = append(row.IPs, a.Unmap())
	}
	c.pods = append(c.pods, row)
	return c.note(d, "Pod/"+row.Key())
}

// addPorts notes the ports of the containers that run as long as the pod does: an
// init container counts if it is restarted always. The others' are only checked.
func (c *contents) addPorts(d k8s.Document, row *workload.Pod, p *corev1.Pod) error {
	for i := range p.Spec.InitContainers {
		ctr := &p.Spec.InitContainers[i]
		ports, err := portsOf(d, fmt.Sprintf("spec.initContainers[%d]", i), ctr)
		if err != nil {
			return err
		}
		if ctr.RestartPolicy != nil && *ctr.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			c.takePorts(row, ports)
		}
	}
	for i := range p.Spec.Containers {
		ports, err := portsOf(d, fmt.Sprintf("spec.containers[%d]", i), &p.Spec.Containers[i])
		if err != nil {
			return err
		}
		c.takePorts(row, ports)
	}
	return nil
}

func (c *contents) takePorts(row *workload.Pod, ports []workload.NamedPort) {
	c.ports[row.Key()] = append(c.ports[row.Key()], ports...)
	for _, np := range ports {
		if np.Name != "" {
			row.NamedPorts = append(row.NamedPorts, np)
		}
	}
}

// portsOf reads the ports of a container, those without a name too.
func portsOf(d k8s.Document, at string, ctr *corev1.Container) (out []workload.NamedPort, err error) {
	for j, port := range ctr.Ports {
		path := fmt.Sprintf("%s.ports[%d]", at, j)
		if port.ContainerPort < 1 || port.ContainerPort > 65535 {
			return nil, problem(d, path+".containerPort", fmt.Sprintf("%d is not a port; give 1 to 65535", port.ContainerPort))
		}
		proto := types.ProtoTCP
		if port.Protocol != "" {
			if proto, err = types.ParseProto(string(port.Protocol)); err != nil || !proto.HasPorts() {
				return nil, problem(d, path+".protocol", fmt.Sprintf("%q is not known; give TCP, UDP or SCTP", port.Protocol))
			}
		}
		out = append(out, workload.NamedPort{Name: port.Name, Proto: proto, Port: uint16(port.ContainerPort)})
	}
	return out, nil
}

func (c *contents) addNamespace(d k8s.Document) error {
	var n corev1.Namespace
	if err := d.Decode(&n); err != nil {
		return err
	}
	if err := checkNames(d, n.Name, n.Name); err != nil {
		return err
	}
	c.namespaces = append(c.namespaces, &workload.Namespace{Name: n.Name, Labels: n.Labels})
	return c.note(d, "Namespace/"+n.Name)
}

func (c *contents) addNode(d k8s.Document, o Options) error {
	var n corev1.Node
	if err := d.Decode(&n); err != nil {
		return err
	}
	if err := checkNames(d, metav1.NamespaceDefault, n.Name); err != nil {
		return err
	}
	row := &workload.Node{Name: n.Name, Labels: n.Labels, Local: n.Name == o.NodeName}
	for i, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		addr, err := netip.ParseAddr(a.Address)
		if err != nil || addr.Zone() != "" {
			return problem(d, fmt.Sprintf("status.addresses[%d].address", i), fmt.Sprintf("%q is not an IP address", a.Address))
		}
		row.Addresses = append(row.Addresses, addr.Unmap())
	}
	c.nodes = append(c.nodes, row)
	return c.note(d, "Node/"+n.Name)
}

// named checks the names of an object that lies in a namespace, and gives it
// "default" where it says none.
func named(d k8s.Document, m *metav1.ObjectMeta) error {
	if m.Namespace == "" {
		m.Namespace = metav1.NamespaceDefault
	}
	return checkNames(d, m.Namespace, m.Name)
}

func checkNames(d k8s.Document, namespace, name string) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return problem(d, "metadata.namespace", fmt.Sprintf("%q is no name of a namespace; use up to 63 of a-z, 0-9 and -", namespace))
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return problem(d, "metadata.name", fmt.Sprintf("%q is no name of an object; use up to 253 of a-z, 0-9, - and .", name))
	}
	return nil
}
