package filesource

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/workload"
)

// endpointSlice is a part of the addresses of a service.
type endpointSlice struct {
	namespace, name string
	service         string // empty: of none
	addresses       []netip.Addr
}

func (c *contents) addGroup(d k8s.Document) error {
	g, err := d.CIDRGroup()
	if err != nil {
		return err
	}
	c.groups = append(c.groups, g)
	return c.note(d, groupID(g))
}

func (c *contents) addService(d k8s.Document) error {
	var v corev1.Service
	if err := d.Decode(&v); err != nil {
		return err
	}
	if err := named(d, &v.ObjectMeta); err != nil {
		return err
	}
	s := &k8s.Service{Namespace: v.Namespace, Name: v.Name, Labels: v.Labels, Selector: v.Spec.Selector}
	if v.Spec.Type == corev1.ServiceTypeExternalName {
		s.Selector = nil // not looked at, as the API says
	}
	c.services = append(c.services, s)
	return c.note(d, serviceID(s))
}

// addSlice takes every address, ready or not: the policy of a connection must not
// change while its backend ends.
func (c *contents) addSlice(d k8s.Document) error {
	var v discoveryv1.EndpointSlice
	if err := d.Decode(&v); err != nil {
		return err
	}
	if err := named(d, &v.ObjectMeta); err != nil {
		return err
	}
	s := &endpointSlice{namespace: v.Namespace, name: v.Name, service: v.Labels[discoveryv1.LabelServiceName]}
	switch v.AddressType {
	case discoveryv1.AddressTypeFQDN:
		v.Endpoints = nil
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	default:
		return problem(d, "addressType", fmt.Sprintf("%q is not known; give IPv4, IPv6 or FQDN", v.AddressType))
	}
	for i, e := range v.Endpoints {
		for j, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil || a.Zone() != "" || a.Is4() != (v.AddressType == discoveryv1.AddressTypeIPv4) {
				return problem(d, fmt.Sprintf("endpoints[%d].addresses[%d]", i, j), fmt.Sprintf("%q is not an %s address", text, v.AddressType))
			}
			s.addresses = append(s.addresses, a.Unmap())
		}
	}
	c.slices = append(c.slices, s)
	return c.note(d, sliceID(s))
}

func groupID(g *k8s.CIDRGroup) string   { return api.KindCIDRGroup + "/" + g.Name }
func serviceID(s *k8s.Service) string   { return k8s.KindService + "/" + s.Namespace + "/" + s.Name }
func sliceID(s *endpointSlice) string   { return "EndpointSlice/" + s.namespace + "/" + s.name }
func serviceKey(ns, name string) string { return ns + "/" + name }

// apiServer is the service whose endpoints are the cluster's API server; the
// server itself keeps them.
const apiServer = "default/kubernetes"

// nodes returns the rows of nodes, and one of the API server: no Node can have
// its name.
func (s *Snapshot) nodes() map[string]*workload.Node {
	if len(s.APIServer) == 0 {
		return s.Nodes
	}
	out := maps.Clone(s.Nodes)
	out[apiServer] = &workload.Node{Name: apiServer, Addresses: s.APIServer, APIServer: true}
	return out
}

// collector gathers what policies name from the contents of files.
type collector struct {
	refs      *k8s.References
	addresses map[string][]netip.Addr // by service
}

func newCollector() *collector {
	return &collector{addresses: map[string][]netip.Addr{}, refs: &k8s.References{
		Groups: map[string]*k8s.CIDRGroup{}, Services: map[string]*k8s.Service{}, Nodes: map[string]*k8s.Node{}}}
}

// take adds a file's objects except those that another file holds.
func (r *collector) take(c *contents, taken map[string]bool) {
	for _, g := range c.groups {
		if !taken[groupID(g)] {
			r.refs.Groups[g.Name] = g
		}
	}
	for _, s := range c.services {
		if !taken[serviceID(s)] {
			r.refs.Services[serviceKey(s.Namespace, s.Name)] = s
		}
	}
	for _, s := range c.slices {
		if !taken[sliceID(s)] && s.service != "" {
			key := serviceKey(s.namespace, s.service)
			r.addresses[key] = append(r.addresses[key], s.addresses...)
		}
	}
}

// all returns everything, nodes too.
func (r *collector) all(nodes map[string]*workload.Node) *k8s.References {
	for key, as := range r.addresses {
		slices.SortFunc(as, netip.Addr.Compare)
		as = slices.Compact(as)
		r.addresses[key] = as
		if s := r.refs.Services[key]; s != nil {
			with := *s
			with.Addresses = as
			r.refs.Services[key] = &with
		}
	}
	for name, n := range nodes {
		r.refs.Nodes[name] = &k8s.Node{Name: name, Labels: n.Labels, Addresses: n.Addresses, Local: n.Local}
	}
	return r.refs
}

// translate puts the policies into the snapshot: those that name nothing as they
// were read, others anew if their text or what they name is other than in the last
// scan.
func (m *merger) translate(s *Snapshot, policies map[string]*translated) (warnings []Problem) {
	stale := s.References.Stale(m.references)
	traced := map[string]*translated{}
	for _, id := range slices.Sorted(maps.Keys(policies)) {
		p := policies[id]
		if len(p.Uses) > 0 {
			last := m.traced[id]
			if last == nil || last.object.Value != p.object.Value || stale(p.Uses) {
				tr, err := k8s.TranslateTraced(p.object, m.options.translation(s.References))
				if err != nil { // it was right without references, so it is with them
					tr = p.Translation
					warnings = append(warnings, problemsOf(err, p.object.File)...)
				}
				last = &translated{p.object, tr}
			}
			traced[id], p = last, last
		}
		s.Policies[id] = p.Policies
		warnings = append(warnings, warningsOf(p.Translation)...)
	}
	m.references, m.traced = s.References, traced
	return warnings
}

// warningsOf tells the names that nothing is known under.
func warningsOf(tr k8s.Translation) []Problem {
	var out []Problem
	for _, m := range tr.Missing {
		p := problemOf(m, m.File)
		p.Warning = true
		out = append(out, p)
	}
	return out
}
