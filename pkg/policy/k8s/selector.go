package k8s

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirnet/weir/pkg/labels"
)

// keyFunc turns a key as written into the source and key of a label, or says
// what is wrong with it.
type keyFunc func(key string) (source, name, problem string)

// podKey reads a key of a Kubernetes pod selector.
func podKey(key string) (string, string, string) {
	return labels.SourceK8s, key, badKey(key)
}

// namespaceKey reads a key of a Kubernetes namespace selector.
func namespaceKey(key string) (string, string, string) {
	return labels.SourceK8s, labels.KeyNamespaceLabels + "." + key, badKey(key)
}

// sources are those that a selector of cilium.io may name before a colon.
var sources = []string{labels.SourceK8s, labels.SourceAny, labels.SourceReserved, labels.SourceContainer}

// ciliumKey reads a key of a cilium.io selector: "key" or "source:key", where
// no source means k8s.
func ciliumKey(key string) (string, string, string) {
	source, name, ok := strings.Cut(key, ":")
	if !ok {
		source, name = labels.SourceK8s, key
	}
	if !slices.Contains(sources, source) {
		return "", "", fmt.Sprintf("has the source %q; there are %s", clip(source), strings.Join(sources, ", "))
	}
	return source, name, badKey(strings.TrimPrefix(name, labels.KeyNamespaceLabels+"."))
}

func badKey(key string) string {
	if len(validation.IsQualifiedName(key)) > 0 {
		return "is no label key; use up to 63 letters, digits, '-', '_' and '.', with a DNS name and '/' before it if need be"
	}
	return ""
}

// requirements reads a label selector; it reports what is wrong with it.
func (t *translator) requirements(s *metav1.LabelSelector, path string, key keyFunc) []labels.Requirement {
	out := make([]labels.Requirement, 0, len(s.MatchLabels)+len(s.MatchExpressions)+2)
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		at := fmt.Sprintf("%s.matchLabels[%s]", path, clip(k))
		source, name, problem := key(k)
		if problem != "" {
			t.fail(at, "%s", problem)
		}
		t.inIdentities(source, name, at)
		v := s.MatchLabels[k]
		t.labelValue(at, v)
		out = append(out, labels.Requirement{Source: source, Key: name, Operator: labels.In, Values: []string{v}})
	}
	for i, e := range s.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		source, name, problem := key(e.Key)
		if problem != "" {
			t.fail(at+".key", "%q %s", clip(e.Key), problem)
		}
		t.inIdentities(source, name, at+".key")
		r := labels.Requirement{Source: source, Key: name, Values: e.Values}
		switch e.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if r.Operator = labels.In; e.Operator == metav1.LabelSelectorOpNotIn {
				r.Operator = labels.NotIn
			}
			if len(e.Values) == 0 {
				t.fail(at+".values", "is empty; %s needs at least one value", e.Operator)
			}
			for j, v := range e.Values {
				t.labelValue(fmt.Sprintf("%s.values[%d]", at, j), v)
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if r.Operator = labels.Exists; e.Operator == metav1.LabelSelectorOpDoesNotExist {
				r.Operator = labels.DoesNotExist
			}
			if len(e.Values) > 0 {
				t.fail(at+".values", "has values, which %s does not look at; take them out or use In or NotIn", e.Operator)
			}
		default:
			t.fail(at+".operator", "%q is not known; give In, NotIn, Exists or DoesNotExist", clip(string(e.Operator)))
		}
		out = append(out, r)
	}
	return out
}

// inIdentities notes a label that takes part in no identity: a selector never
// sees it, so what asks for it matches nobody, and what excludes it everybody.
func (t *translator) inIdentities(source, name, path string) {
	if source == labels.SourceAny {
		source = labels.SourceK8s
	}
	if !t.filter.Relevant(labels.Label{Source: source, Key: name}) {
		t.note(path, "no identity carries the label %s, so no pod is seen to have it; select by another label, or let it in with the agent's --labels", clip(name))
	}
}

func (t *translator) labelValue(path, v string) {
	if len(validation.IsValidLabelValue(v)) > 0 {
		t.fail(path, "%q is no label value; use up to 63 letters, digits, '-', '_' and '.'", clip(v))
	}
}

func inNamespace(ns string) labels.Requirement {
	return labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.In, Values: []string{ns}}
}

func inSomeNamespace() labels.Requirement {
	return labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.Exists}
}

// inCluster limits a peer to this cluster, unless it names one itself.
func (t *translator) inCluster(rs []labels.Requirement) []labels.Requirement {
	if t.cluster == "" || slices.ContainsFunc(rs, func(r labels.Requirement) bool { return r.Key == labels.KeyCluster }) {
		return rs
	}
	return append(rs, labels.Requirement{
		Source: labels.SourceK8s, Key: labels.KeyCluster, Operator: labels.In, Values: []string{t.cluster}})
}

// demands reports whether a requirement that matches holds only for sets with
// such a label.
func demands(r labels.Requirement) bool {
	return r.Operator == labels.In || r.Operator == labels.Exists
}

// demandsReserved reports whether the selector asks for a reserved label. A
// selector that only excludes one does not escape its namespace by it
// (CVE-2023-41333).
func demandsReserved(rs []labels.Requirement) bool {
	return slices.ContainsFunc(rs, func(r labels.Requirement) bool {
		return r.Source == labels.SourceReserved && demands(r)
	})
}

// setsNamespace reports whether the selector says itself which namespaces it
// means, by name or by their labels.
func setsNamespace(rs []labels.Requirement) bool {
	return slices.ContainsFunc(rs, func(r labels.Requirement) bool {
		return (r.Source == labels.SourceK8s || r.Source == labels.SourceAny) &&
			(r.Key == labels.KeyPodNamespace || strings.HasPrefix(r.Key, labels.KeyNamespaceLabels+"."))
	})
}
