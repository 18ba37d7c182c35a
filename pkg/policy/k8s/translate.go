package k8s

import (
	"errors"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	npapi "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Options is what a translation needs beside the object.
type Options struct {
	// ClusterName limits the pods that peers select to those of this cluster,
	// unless the peer names a cluster. Pods must carry the same name. Empty: no limit.
	ClusterName string
	// Labels says which labels make identities; nil: all. A selector by another
	// label is reported as missing.
	Labels *labels.Filter
	// References is what policies name beside pods; nil: nothing is known.
	References *References
}

// Translation is the policies of an object and what they depend on.
type Translation struct {
	// Policies is one, or one per member of spec and specs.
	Policies []*types.Policy
	// Uses says what the object names beside pods, sorted, known or not: when one
	// of them changes, it has to be translated again.
	Uses []Use
	// Missing are names that nothing is known under and labels that no identity
	// carries; they stand for nobody. No errors.
	Missing []*FieldError
}

// Translate makes policies of an object. The error joins a *FieldError for
// everything that is wrong; then there are no policies. Whether there is an error
// does not depend on the references.
func Translate(o Object, opts Options) ([]*types.Policy, error) {
	tr, err := TranslateTraced(o, opts)
	return tr.Policies, err
}

// TranslateTraced is Translate for callers that translate again when what the
// policies name has changed.
func TranslateTraced(o Object, opts Options) (Translation, error) {
	t := &translator{object: &o, cluster: opts.ClusterName, filter: opts.Labels, refs: opts.References, uses: map[Use]bool{}}
	if t.refs == nil {
		t.refs = &References{}
	}
	var ps []*types.Policy
	switch v := o.Value.(type) {
	case *networkingv1.NetworkPolicy:
		ps = []*types.Policy{t.networkPolicy(&v.Spec)}
	case *api.CiliumNetworkPolicy:
		ps = t.cilium(v.Spec, v.Specs)
	case *api.CiliumClusterwideNetworkPolicy:
		ps = t.cilium(v.Spec, v.Specs)
	case *npapi.ClusterNetworkPolicy:
		ps = []*types.Policy{t.clusterNetworkPolicy(&v.Spec)}
	default:
		return Translation{}, fmt.Errorf("translate %s: object of type %T is no policy", o.Resource, o.Value)
	}
	if err := errors.Join(t.errs...); err != nil {
		return Translation{}, err
	}
	return Translation{ps, sortedUses(t.uses), t.missing}, nil
}

// TranslateAll translates the objects that Decode returned, in order.
func TranslateAll(objects []Object, opts Options) ([]*types.Policy, error) {
	var out []*types.Policy
	var errs []error
	for _, o := range objects {
		ps, err := Translate(o, opts)
		out = append(out, ps...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// translator translates one object and collects what is wrong with it.
type translator struct {
	object  *Object
	cluster string
	filter  *labels.Filter
	refs    *References // never nil
	uses    map[Use]bool
	missing []*FieldError
	errs    []error
}

func (t *translator) fail(path, format string, args ...any) {
	if len(t.errs) < 20 {
		t.errs = append(t.errs, t.object.problem(path, fmt.Sprintf(format, args...)))
	}
}

// use notes what the object depends on; without a name on all of the kind.
func (t *translator) use(kind, name string) { t.uses[Use{kind, name}] = true }

// miss notes a name that nothing is known under.
func (t *translator) miss(kind, name, path string) {
	t.note(path, "there is no %s %s; it stands for nobody until there is", kind, clip(name))
}

func (t *translator) note(path, format string, args ...any) {
	if len(t.missing) < 20 {
		t.missing = append(t.missing, t.object.problem(path, fmt.Sprintf(format, args...)))
	}
}

// ref names the rule at path, which is the index-th of the section.
func (t *translator) ref(section string, index int, path string) types.RuleRef {
	return types.RuleRef{
		Kind: types.KindPolicy, Resource: t.object.Resource,
		Section: section, Index: index, Line: t.object.lines.of(path),
	}
}
