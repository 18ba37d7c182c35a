package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/labels"
)

// edit is one label that would be another, of a pod or of its namespace.
type edit struct {
	key     string // without the prefix of namespace labels
	value   string
	remove  bool
	ofSpace bool // a label of the pod's namespace
}

// label is the label that the edit sets.
func (e edit) label() labels.Label {
	if e.ofSpace {
		return labels.Label{Source: labels.SourceK8s, Key: labels.KeyNamespaceLabels + "." + e.key, Value: e.value}
	}
	return labels.Label{Source: labels.SourceK8s, Key: e.key, Value: e.value}
}

// apply returns the set with the edits.
func apply(a labels.LabelArray, edits []edit) labels.LabelArray {
	out := slices.Clone(a)
	for _, e := range edits {
		l := e.label()
		out = slices.DeleteFunc(out, func(o labels.Label) bool { return o.Source == l.Source && o.Key == l.Key })
		if !e.remove {
			out = append(out, l)
		}
	}
	return labels.NewLabelArray(out...)
}

// editOf turns a requirement's key into an edit without a value; false if
// nobody can write that label on a pod or a namespace.
func editOf(r labels.Requirement) (edit, bool) {
	if r.Source != labels.SourceAny && r.Source != labels.SourceK8s {
		return edit{}, false
	}
	if key, ok := strings.CutPrefix(r.Key, labels.KeyNamespaceLabels+"."); ok {
		return edit{key: key, ofSpace: true}, r.Key != labels.KeyNamespaceName
	}
	derived := r.Key == labels.KeyPodNamespace || r.Key == labels.KeyCluster || r.Key == labels.KeyServiceAccount
	return edit{key: r.Key}, !derived
}

// fit lists the edits that make a selector match a set; false if none can.
func fit(s labels.Selector, a labels.LabelArray) ([]edit, bool) {
	var out []edit
	for _, r := range s.Requirements() {
		if labels.NewSelector(r).Matches(a) {
			continue
		}
		e, ok := turn(r, true)
		if !ok {
			return nil, false
		}
		out = append(out, e)
	}
	return out, true
}

// unfit lists single edits of which each makes a selector that matches a set
// match it no longer.
func unfit(s labels.Selector) []edit {
	var out []edit
	for _, r := range s.Requirements() {
		if e, ok := turn(r, false); ok {
			out = append(out, e)
		}
	}
	return out
}

// turn is the edit after which a requirement holds, or does not hold.
func turn(r labels.Requirement, hold bool) (edit, bool) {
	e, ok := editOf(r)
	if !ok {
		return e, false
	}
	positive := r.Operator == labels.In || r.Operator == labels.Exists
	e.remove = positive != hold
	if !e.remove && len(r.Values) > 0 {
		e.value = r.Values[0]
	}
	return e, !(r.Operator == labels.In && len(r.Values) == 0)
}

// text prints "label app=web on shop/a" or "without label app on shop/a".
func (e edit) text(pod, namespace string) string {
	where := pod
	if e.ofSpace {
		where = "namespace " + namespace
	}
	if e.remove {
		return fmt.Sprintf("without label %s on %s", e.key, where)
	}
	return fmt.Sprintf("with label %s=%s on %s", e.key, e.value, where)
}
