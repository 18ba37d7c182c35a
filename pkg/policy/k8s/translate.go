package k8s

import (
	"errors"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Options is what a translation needs beside the object.
type Options struct {
	// ClusterName limits the pods that peers select to those of this cluster,
	// unless the peer names a cluster. Pods must carry the same name. Empty: no limit.
	ClusterName string
}

// Translate makes policies of an object: one, or one per member of spec and
// specs. The error joins a *FieldError for everything that is wrong; then there
// are no policies.
func Translate(o Object, opts Options) ([]*types.Policy, error) {
	t := &translator{object: &o, cluster: opts.ClusterName}
	var ps []*types.Policy
	switch v := o.Value.(type) {
	case *networkingv1.NetworkPolicy:
		ps = []*types.Policy{t.networkPolicy(&v.Spec)}
	case *api.CiliumNetworkPolicy:
		ps = t.cilium(v.Spec, v.Specs)
	case *api.CiliumClusterwideNetworkPolicy:
		ps = t.cilium(v.Spec, v.Specs)
	default:
		return nil, fmt.Errorf("translate %s: object of type %T is no policy", o.Resource, o.Value)
	}
	if err := errors.Join(t.errs...); err != nil {
		return nil, err
	}
	return ps, nil
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
	errs    []error
}

func (t *translator) fail(path, format string, args ...any) {
	if len(t.errs) < 20 {
		t.errs = append(t.errs, t.object.problem(path, fmt.Sprintf(format, args...)))
	}
}

// ref names the rule at path, which is the index-th of the section.
func (t *translator) ref(section string, index int, path string) types.RuleRef {
	return types.RuleRef{
		Kind: types.KindPolicy, Resource: t.object.Resource,
		Section: section, Index: index, Line: t.object.lines.of(path),
	}
}
