package k8s

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	npapi "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
)

// KindNetworkPolicy is the kind of Kubernetes' own policies.
const KindNetworkPolicy = "NetworkPolicy"

// Object is a policy object, decoded but not translated.
type Object struct {
	types.Resource
	// Value is *networkingv1.NetworkPolicy, *api.CiliumNetworkPolicy,
	// *api.CiliumClusterwideNetworkPolicy or *npapi.ClusterNetworkPolicy.
	Value any

	lines lines
}

// dialects are the kinds that Translate understands.
var dialects = map[string]struct {
	apiVersions []string
	clustered   bool // has no namespace
	empty       func() any
}{
	KindNetworkPolicy:        {[]string{"networking.k8s.io/v1"}, false, func() any { return new(networkingv1.NetworkPolicy) }},
	api.KindNamespaced:       {[]string{api.APIVersion}, false, func() any { return new(api.CiliumNetworkPolicy) }},
	api.KindClusterwide:      {[]string{api.APIVersion}, true, func() any { return new(api.CiliumClusterwideNetworkPolicy) }},
	KindClusterNetworkPolicy: {[]string{npapi.GroupName + "/v1alpha2", npapi.GroupName + "/v1beta1"}, true, func() any { return new(npapi.ClusterNetworkPolicy) }},
}

// Kinds returns the kinds of policy that are understood.
func Kinds() []string {
	return []string{KindNetworkPolicy, api.KindNamespaced, api.KindClusterwide, KindClusterNetworkPolicy}
}

// later are kinds of policy that are known and refused.
var later = map[string]string{
	"AdminNetworkPolicy":         "use ClusterNetworkPolicy with tier Admin",
	"BaselineAdminNetworkPolicy": "use ClusterNetworkPolicy with tier Baseline",
	"CiliumEgressGatewayPolicy":  "take it out",
	"CiliumLocalRedirectPolicy":  "take it out",
}

// IsPolicy reports whether the document is of a kind that says something about
// policy, supported or not.
func (d Document) IsPolicy() bool {
	_, ok := dialects[d.Kind]
	if !ok {
		_, ok = later[d.Kind]
	}
	return ok
}

// Decode reads every policy object of a text. It returns those that are right
// and an error that joins a *FieldError for everything that is not; objects of
// other kinds are errors too (use Split where a text holds both).
func Decode(data []byte, file string) ([]Object, error) {
	docs, err := Split(data, file)
	errs := []error{err}
	var out []Object
	seen := map[string]int{}
	for _, d := range docs {
		o, err := d.Policy()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if line, ok := seen[o.ID()]; ok {
			errs = append(errs, d.problem(d.Line, "metadata.name",
				fmt.Sprintf("is taken by the object in line %d; give one of them another name", line)))
			continue
		}
		seen[o.ID()] = o.Line
		out = append(out, o)
	}
	return out, errors.Join(errs...)
}

// Policy decodes a document of a policy kind.
func (d Document) Policy() (Object, error) {
	k, ok := dialects[d.Kind]
	if next, known := later[d.Kind]; known {
		return Object{}, d.problem(d.Line, "kind", fmt.Sprintf("%s (%s) is not supported yet; %s", d.Kind, d.APIVersion, next))
	}
	if !ok {
		return Object{}, d.problem(d.Line, "kind", fmt.Sprintf("%q is no kind of policy; give one of %s",
			clip(d.Kind), strings.Join(Kinds(), ", ")))
	}
	if !slices.Contains(k.apiVersions, d.APIVersion) {
		return Object{}, d.problem(d.Line, "apiVersion", fmt.Sprintf("%q is not known for this kind; give %s", clip(d.APIVersion), strings.Join(k.apiVersions, " or ")))
	}
	v := k.empty()
	where, err := d.decode(v, d.APIVersion == api.APIVersion)
	if err != nil {
		return Object{}, err
	}
	return newObject(v, d.File, where)
}

// NewObject wraps a policy object that did not come from a text.
func NewObject(v any) (Object, error) { return newObject(v, "", nil) }

func newObject(v any, file string, where lines) (Object, error) {
	o := Object{Value: v, lines: where, Resource: types.Resource{File: file, Line: where.of("")}}
	switch p := v.(type) {
	case *networkingv1.NetworkPolicy:
		o.Kind, o.Namespace, o.Name = KindNetworkPolicy, p.Namespace, p.Name
	case *api.CiliumNetworkPolicy:
		o.Kind, o.Namespace, o.Name = api.KindNamespaced, p.Namespace, p.Name
	case *api.CiliumClusterwideNetworkPolicy:
		o.Kind, o.Namespace, o.Name = api.KindClusterwide, p.Namespace, p.Name
	case *npapi.ClusterNetworkPolicy:
		o.Kind, o.Namespace, o.Name = KindClusterNetworkPolicy, p.Namespace, p.Name
	default:
		return Object{}, fmt.Errorf("object of type %T is no policy", v)
	}
	if dialects[o.Kind].clustered {
		if o.Namespace != "" {
			return Object{}, o.problem("metadata.namespace", fmt.Sprintf("is %q, but the kind has no namespace; take it out", clip(o.Namespace)))
		}
	} else if o.Namespace == "" {
		o.Namespace = "default"
	} else if len(validation.IsDNS1123Label(o.Namespace)) > 0 {
		return Object{}, o.problem("metadata.namespace", fmt.Sprintf("%q is no name of a namespace; use up to 63 of a-z, 0-9 and -", clip(o.Namespace)))
	}
	if len(validation.IsDNS1123Subdomain(o.Name)) > 0 {
		return Object{}, o.problem("metadata.name", fmt.Sprintf("%q is no name of an object; use up to 253 of a-z, 0-9, - and .", clip(o.Name)))
	}
	return o, nil
}

func (o *Object) problem(path, problem string) *FieldError {
	return &FieldError{File: o.File, Line: o.lines.of(path), Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Path: path, Problem: problem}
}
