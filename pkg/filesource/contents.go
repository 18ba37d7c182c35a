package filesource

import (
	"maps"
	"slices"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/workload"
)

// only returns the contents with these objects alone.
func (c *contents) only(ids map[string]bool) *contents {
	out := newContents()
	out.pods = filter(c.pods, func(p *workload.Pod) bool { return ids["Pod/"+p.Key()] })
	out.namespaces = filter(c.namespaces, func(n *workload.Namespace) bool { return ids["Namespace/"+n.Name] })
	out.nodes = filter(c.nodes, func(n *workload.Node) bool { return ids["Node/"+n.Name] })
	out.groups = filter(c.groups, func(g *k8s.CIDRGroup) bool { return ids[groupID(g)] })
	out.services = filter(c.services, func(s *k8s.Service) bool { return ids[serviceID(s)] })
	out.slices = filter(c.slices, func(s *endpointSlice) bool { return ids[sliceID(s)] })
	for _, p := range out.pods {
		if ports, ok := c.ports[p.Key()]; ok {
			out.ports[p.Key()] = ports
		}
	}
	for _, id := range c.order {
		if !ids[id] {
			continue
		}
		out.order, out.lines[id] = append(out.order, id), c.lines[id]
		if p, ok := c.policies[id]; ok {
			out.policies[id] = p
		}
	}
	return out
}

func filter[T any](list []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return !keep(v) })
}

// describe notes what matters of the contents without their text.
func (c *contents) describe(v *lastgood.Version) {
	v.Objects = len(c.order)
	v.Policies, v.Namespaces = nil, nil
	v.Named = len(c.groups)+len(c.services)+len(c.slices)+len(c.nodes) > 0
	for _, n := range c.namespaces {
		v.Namespaces = append(v.Namespaces, n.Name)
	}
	for _, id := range c.order {
		p, ok := c.policies[id]
		if !ok {
			continue
		}
		known := lastgood.Policy{ID: id}
		for _, one := range p.Policies {
			known.Subjects = append(known.Subjects, append([]labels.Requirement{}, one.Subject.Requirements()...))
		}
		v.Policies = append(v.Policies, known)
	}
}

// version is one text of a file of which objects are in force.
type version struct {
	lastgood.Version
	contents *contents // of the objects in force; nil: the text cannot be read
	text     string    // to be stored; empty: it is
	err      error     // why contents is nil
}

func newVersion(text string, c *contents) version {
	v := version{contents: c, text: text}
	c.describe(&v.Version)
	return v
}

// ids are the objects of the version that are in force; of one that cannot be read,
// those that are known.
func (v version) ids() []string {
	switch {
	case v.contents != nil:
		return v.contents.order
	case v.Only != nil:
		return v.Only
	}
	var out []string
	for _, p := range v.Policies {
		out = append(out, p.ID)
	}
	return out
}

// count is how many objects of the version are in force.
func (v version) count() int {
	if v.Only != nil {
		return len(v.Only)
	}
	return v.Objects
}

// without is the version less objects; ok is false if none is left.
func (v version) without(gone map[string]bool) (out version, ok bool) {
	ids := filter(v.ids(), func(id string) bool { return !gone[id] })
	if len(ids) == 0 {
		return v, false
	}
	if len(ids) == v.count() {
		return v, true
	}
	kept := map[string]bool{}
	for _, id := range ids {
		kept[id] = true
	}
	if v.contents != nil {
		v.contents = v.contents.only(kept)
	}
	v.Only = slices.Sorted(maps.Keys(kept))
	v.Policies = filter(v.Policies, func(p lastgood.Policy) bool { return kept[p.ID] })
	v.Namespaces = filter(v.Namespaces, func(name string) bool { return kept["Namespace/"+name] })
	return v, true
}
