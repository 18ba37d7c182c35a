package lint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
)

// IgnoreAnnotation lists, with commas, codes not to report of an object.
const IgnoreAnnotation = "weir/lint-ignore"

// World is what is known besides the policies. Checks that need pods or
// namespaces are left out where there are none.
type World struct {
	Pods       []simulate.Pod  // governed by policies; a pod may have no address yet
	HostPods   []simulate.Pod  // of the host network
	Nodes      []simulate.Host // with their addresses
	Namespaces []Namespace     // all that are known; empty: unknown
}

// Namespace is a Namespace object, or a namespace of pods without one.
type Namespace struct {
	Name    string
	Labels  map[string]string
	Implied bool // there is no object, only pods, the first of which stands at File and Line
	File    string
	Line    int
}

// Finding is one thing to mend or to confirm.
type Finding struct {
	Code     Code
	Resource types.Resource // zero: the file as a whole
	File     string
	Line     int    // from 1; 0 unknown
	Field    string // path in the object; empty: the whole
	Reason   string // what happens
	Fix      string // what to do
}

// String prints "file:line: WL101 reason; fix".
func (f Finding) String() string {
	place := f.File
	if f.Line > 0 {
		place += fmt.Sprintf(":%d", f.Line)
	}
	return fmt.Sprintf("%s: %s %s: %s; %s", place, f.Code.ID, f.Code.Name, f.Reason, f.Fix)
}

// Run checks the objects against themselves, each other and the world. Findings
// are sorted by file, line and code.
func Run(objects []k8s.Object, w World, opts k8s.Options) []Finding {
	found, _ := Check(objects, w, opts)
	return found
}

// Check is Run, which also says in sentences what it left out.
func Check(objects []k8s.Object, w World, opts k8s.Options) (found []Finding, leftOut []string) {
	l := newLinter(w, objects, opts, maxAsked)
	return l.found, l.leftOut
}

func newLinter(w World, objects []k8s.Object, opts k8s.Options, most int) *linter {
	l := &linter{world: w, most: most, known: newKnown(w), dead: map[string]bool{}}
	for i := range objects {
		l.add(&objects[i], opts)
	}
	for _, p := range l.parts {
		l.written(p)
	}
	for _, p := range l.parts {
		l.selects(p)
	}
	if len(l.parts) > 0 {
		l.namespaces()
		l.against()
	}
	slices.SortStableFunc(l.found, Compare)
	return l
}

// Compare orders findings by file, line, code and field.
func Compare(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Code.ID, b.Code.ID), cmp.Compare(a.Field, b.Field))
}

// Problem makes a finding of a file or object that is refused.
func Problem(file string, line int, field, text string) Finding {
	f := Finding{Code: Refused, File: file, Line: line, Field: field, Reason: text, Fix: "mend it; until then nothing of the file is in force"}
	if strings.Contains(field, ".except[") {
		f.Code = ExceptOutside
	}
	if field != "" {
		f.Reason = field + ": " + text
	}
	return f
}

// linter collects findings.
type linter struct {
	world   World
	known   *known
	parts   []part
	found   []Finding
	leftOut []string
	asked   int             // packets of which it was asked who decides
	most    int             // of them
	dead    map[string]bool // rules that have a finding which says why they never decide, by RuleRef.Key
}

// part is one policy of an object: the object has one, or one per spec.
type part struct {
	object *k8s.Object
	policy *types.Policy
	path   string // "spec" or "specs[0]"
	spec   any    // *networkingv1.NetworkPolicySpec or *api.Rule; nil of other kinds
	rules  []*types.Rule
	// missing is what it names and nothing is known under.
	missing []*k8s.FieldError
}

// misses reports whether something at the field or below it is missing.
func (p part) misses(path string) bool {
	return slices.ContainsFunc(p.missing, func(m *k8s.FieldError) bool {
		return m.Path == path || strings.HasPrefix(m.Path, path+".") || strings.HasPrefix(m.Path, path+"[")
	})
}

// subjectPath is the field that selects the pods governed.
func (p part) subjectPath() string {
	for _, name := range []string{".podSelector", ".endpointSelector", ".subject"} {
		if p.object.HasField(p.path + name) {
			return p.path + name
		}
	}
	return p.path
}

// add translates an object; one that cannot be is a finding.
func (l *linter) add(o *k8s.Object, opts k8s.Options) {
	for _, id := range ignored(o) {
		if !slices.ContainsFunc(Codes(), func(c Code) bool { return c.ID == id }) {
			l.reportOf(o, UnknownCode, "metadata.annotations", "write codes of docs/lint.md with commas between them",
				"%s names %q, which is no code", IgnoreAnnotation, id)
		}
	}
	tr, err := k8s.TranslateTraced(*o, opts)
	if err != nil {
		l.refused(o, err)
		return
	}
	specs, paths := specsOf(o)
	for i, p := range tr.Policies {
		q := part{object: o, policy: p, path: "spec"}
		if len(specs) == len(tr.Policies) {
			q.spec, q.path = specs[i], paths[i]
		}
		for j := range p.Rules {
			q.rules = append(q.rules, &p.Rules[j])
		}
		for _, m := range tr.Missing {
			if m.Path == q.path || strings.HasPrefix(m.Path, q.path+".") {
				q.missing = append(q.missing, m)
			}
		}
		l.parts = append(l.parts, q)
	}
}

func (l *linter) refused(o *k8s.Object, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			l.refused(o, e)
		}
		return
	}
	var fe *k8s.FieldError
	if errors.As(err, &fe) {
		f := Problem(fe.File, fe.Line, fe.Path, fe.Problem)
		f.Resource = o.Resource
		l.found = append(l.found, f)
		return
	}
	f := Problem(o.File, o.Line, "", err.Error())
	f.Resource = o.Resource
	l.found = append(l.found, f)
}

// specsOf returns the specs of an object with their paths, in the order in which
// they are translated.
func specsOf(o *k8s.Object) (specs []any, paths []string) {
	cilium := func(spec *api.Rule, more []api.Rule) {
		if spec != nil {
			specs, paths = append(specs, spec), append(paths, "spec")
		}
		for i := range more {
			specs, paths = append(specs, &more[i]), append(paths, fmt.Sprintf("specs[%d]", i))
		}
	}
	switch v := o.Value.(type) {
	case *networkingv1.NetworkPolicy:
		return []any{&v.Spec}, []string{"spec"}
	case *api.CiliumNetworkPolicy:
		cilium(v.Spec, v.Specs)
	case *api.CiliumClusterwideNetworkPolicy:
		cilium(v.Spec, v.Specs)
	}
	return specs, paths
}

// report adds a finding unless the object does not want to hear of its code.
func (l *linter) report(p part, c Code, path, fix, reason string, args ...any) {
	l.reportOf(p.object, c, path, fix, reason, args...)
}

func (l *linter) reportOf(o *k8s.Object, c Code, path, fix, reason string, args ...any) {
	if slices.Contains(ignored(o), c.ID) {
		return
	}
	l.found = append(l.found, Finding{Code: c, Resource: o.Resource, File: o.File, Line: o.LineOf(path), Field: path,
		Reason: fmt.Sprintf(reason, args...), Fix: fix})
}

// ignored are the codes that the object does not want to hear of.
func ignored(o *k8s.Object) []string {
	meta, ok := o.Value.(metav1.Object)
	if !ok || meta.GetAnnotations()[IgnoreAnnotation] == "" {
		return nil
	}
	ids := strings.Split(meta.GetAnnotations()[IgnoreAnnotation], ",")
	for i := range ids {
		ids[i] = strings.TrimSpace(ids[i])
	}
	return ids
}

// rulePath is the field that holds a rule.
func (p part) rulePath(r *types.Rule) string {
	section := r.Ref.Section[strings.LastIndexByte(r.Ref.Section, '.')+1:]
	return fmt.Sprintf("%s.%s[%d]", p.path, section, r.Ref.Index)
}

// peerPath is the field that holds the i-th peer of a rule, or the rule where
// that cannot be said.
func (p part) peerPath(r *types.Rule, i int) string {
	path, word := p.rulePath(r), "from"
	if r.Direction == types.Egress {
		word = "to"
	}
	lists := []string{""}
	if _, ok := p.spec.(*api.Rule); ok {
		if lists = []string{"CIDR", "CIDRSet"}; r.Peers[i].Labels != nil {
			lists = []string{"Endpoints"}
		}
	}
	for _, list := range lists {
		at := fmt.Sprintf("%s.%s%s[%d]", path, word, list, i)
		if p.object.HasField(at) {
			return at
		}
	}
	return path
}

// namesReserved reports whether a selector speaks of something that is no pod.
func namesReserved(s labels.Selector) bool {
	return slices.ContainsFunc(s.Requirements(), func(r labels.Requirement) bool { return r.Source == labels.SourceReserved })
}
