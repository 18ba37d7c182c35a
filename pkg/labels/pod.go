package labels

import "strings"

// ownedPrefix starts every key that only Weir may write.
const ownedPrefix = "io.cilium.k8s"

// Pod is what a pod's labels are derived from.
type Pod struct {
	Namespace       string            // empty: the runtime knows none
	ServiceAccount  string            // empty: none
	Cluster         string            // empty: none
	Labels          map[string]string // as the pod's author wrote them
	NamespaceLabels map[string]string // of the Namespace object
}

// PodLabels derives a pod's full label set, before any Filter. All labels have
// the source k8s. What the pod's author wrote is left out where the key is one
// that Weir derives itself (io.kubernetes.pod.namespace, io.cilium.k8s*), or
// cannot be a Kubernetes label key because it starts with '$' or holds ':',
// '=', ';', a backslash or a control character: nothing written on a pod can
// stand in for its namespace, service account, cluster or a reserved label
// (CVE-2023-39347). Labels of the namespace appear as
// io.cilium.k8s.namespace.labels.<key>; among them always NamespaceName with the
// namespace's name, as the API server sets it, whatever is written or known.
func PodLabels(p Pod) LabelArray {
	ls := make([]Label, 0, len(p.Labels)+len(p.NamespaceLabels)+4)
	for k, v := range p.Labels {
		if k != KeyPodNamespace && !strings.HasPrefix(k, ownedPrefix) && plausibleKey(k) {
			ls = append(ls, Label{SourceK8s, k, v})
		}
	}
	for k, v := range p.NamespaceLabels {
		if k != NamespaceName && plausibleKey(k) {
			ls = append(ls, Label{SourceK8s, KeyNamespaceLabels + "." + k, v})
		}
	}
	for k, v := range map[string]string{
		KeyPodNamespace: p.Namespace, KeyNamespaceName: p.Namespace, KeyServiceAccount: p.ServiceAccount, KeyCluster: p.Cluster,
	} {
		if v != "" {
			ls = append(ls, Label{SourceK8s, k, v})
		}
	}
	return NewLabelArray(ls...)
}

// WithNamespaceName returns a pod's set with the label by which its namespace is
// found by name: sets that former versions derived lack it.
func WithNamespaceName(a LabelArray) LabelArray {
	ns, _ := a.Get(SourceK8s, KeyPodNamespace)
	if have, _ := a.Get(SourceK8s, KeyNamespaceName); have == ns {
		return a
	}
	return a.With(Label{SourceK8s, KeyNamespaceName, ns})
}

func plausibleKey(k string) bool {
	return k != "" && k[0] != '$' && !strings.ContainsFunc(k, func(r rune) bool {
		return r <= ' ' || r == 0x7f || strings.ContainsRune(`:=;\`, r)
	})
}
