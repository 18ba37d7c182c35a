package k8s

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
)

// Kinds of objects that policies name.
const (
	KindService = "Service"
	KindNode    = "Node"
)

// References is what policies name beside pods, as of one moment. Immutable once
// handed on.
type References struct {
	Groups   map[string]*CIDRGroup // by name
	Services map[string]*Service   // by namespace/name
	Nodes    map[string]*Node      // by name
}

// CIDRGroup is a CiliumCIDRGroup.
type CIDRGroup struct {
	Name   string
	Labels map[string]string
	Blocks []netip.Prefix
}

// Service is a Service with what its endpoint slices say.
type Service struct {
	Namespace, Name string
	Labels          map[string]string
	Selector        map[string]string // of pods in its namespace; empty: Addresses count
	Addresses       []netip.Addr      // of all its endpoint slices, sorted
}

// Node is a machine of the cluster.
type Node struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
	Local     bool // the node whose pods the policies govern
}

// Use is one thing that a policy depends on.
type Use struct {
	Kind string // api.KindCIDRGroup, KindService or KindNode
	Name string // "namespace/name" of a service; empty: any of the kind, as selectors look at all
}

// dependsOn reports whether a change of c changes what is used. c names one object.
func (u Use) dependsOn(c Use) bool { return u.Kind == c.Kind && (u.Name == "" || u.Name == c.Name) }

func sortedUses(uses map[Use]bool) []Use {
	return slices.SortedFunc(maps.Keys(uses), func(a, b Use) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
}

// Stale returns a function that says whether what a translation used is other in
// r than it was in before, either of which may be nil.
func (r *References) Stale(before *References) func(uses []Use) bool {
	old, now := before, r
	if old == nil {
		old = &References{}
	}
	if now == nil {
		now = &References{}
	}
	changed := append(changes(api.KindCIDRGroup, old.Groups, now.Groups), changes(KindService, old.Services, now.Services)...)
	changed = append(changed, changes(KindNode, old.Nodes, now.Nodes)...)
	return func(uses []Use) bool {
		return slices.ContainsFunc(uses, func(u Use) bool { return slices.ContainsFunc(changed, u.dependsOn) })
	}
}

// changes lists what appeared, went or differs.
func changes[T any](kind string, old, now map[string]*T) []Use {
	var out []Use
	for name, n := range now {
		if o := old[name]; o == nil || !reflect.DeepEqual(o, n) {
			out = append(out, Use{kind, name})
		}
	}
	for name := range old {
		if now[name] == nil {
			out = append(out, Use{kind, name})
		}
	}
	return out
}

// labelArray makes the labels of an object that is no pod.
func labelArray(m map[string]string) labels.LabelArray {
	out := make([]labels.Label, 0, len(m))
	for k, v := range m {
		out = append(out, labels.New(labels.SourceK8s, k, v))
	}
	return labels.NewLabelArray(out...)
}

// sorted returns the values in the order of their names.
func sorted[T any](m map[string]*T) []*T {
	out := make([]*T, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[name])
	}
	return out
}

// CIDRGroup decodes a document of the kind CiliumCIDRGroup. The error joins a
// *FieldError for everything that is wrong.
func (d Document) CIDRGroup() (*CIDRGroup, error) {
	if d.APIVersion != api.APIVersion && d.APIVersion != api.APIVersionAlpha {
		return nil, d.problem(d.Line, "apiVersion", fmt.Sprintf("%q is not known for this kind; give %s or %s", clip(d.APIVersion), api.APIVersion, api.APIVersionAlpha))
	}
	var v api.CiliumCIDRGroup
	where, err := d.decode(&v, true)
	if err != nil {
		return nil, err
	}
	t := &translator{object: &Object{lines: where}}
	t.object.Kind, t.object.Namespace, t.object.Name, t.object.File = d.Kind, d.Namespace, d.Name, d.File
	if v.Namespace != "" {
		t.fail("metadata.namespace", "is %q, but the kind has no namespace; take it out", clip(v.Namespace))
	}
	if len(validation.IsDNS1123Subdomain(v.Name)) > 0 {
		t.fail("metadata.name", "%q is no name of an object; use up to 253 of a-z, 0-9, - and .", clip(v.Name))
	}
	if v.Spec.ExternalCIDRs == nil {
		t.fail("spec.externalCIDRs", "is missing; list the blocks, or [] for none")
	}
	g := &CIDRGroup{Name: v.Name, Labels: v.Labels}
	for i, c := range v.Spec.ExternalCIDRs {
		if p, ok := t.prefix(c, fmt.Sprintf("spec.externalCIDRs[%d]", i), true); ok {
			g.Blocks = append(g.Blocks, p)
		}
	}
	if err := errors.Join(t.errs...); err != nil {
		return nil, err
	}
	return g, nil
}
