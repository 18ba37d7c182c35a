package labels

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPodLabels(t *testing.T) {
	a := PodLabels(Pod{
		Namespace: "shop", ServiceAccount: "web", Cluster: "c1",
		Labels:          map[string]string{"app": "web", "app.kubernetes.io/name": "x"},
		NamespaceLabels: map[string]string{"team": "a", "kubernetes.io/metadata.name": "shop"},
	})
	require.Equal(t, []string{
		"k8s:app=web", "k8s:app.kubernetes.io/name=x",
		"k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop", "k8s:io.cilium.k8s.namespace.labels.team=a",
		"k8s:io.cilium.k8s.policy.cluster=c1", "k8s:io.cilium.k8s.policy.serviceaccount=web", "k8s:io.kubernetes.pod.namespace=shop",
	}, a.Strings())
}

func TestN05EveryNamespaceCarriesItsNameAsALabel(t *testing.T) {
	for _, written := range []map[string]string{nil, {"team": "a"}, {NamespaceName: "shop"}, {NamespaceName: "kube-system"}, {NamespaceName: ""}} {
		v, ok := PodLabels(Pod{Namespace: "shop", NamespaceLabels: written}).Get(SourceK8s, KeyNamespaceName)
		require.True(t, ok)
		require.Equal(t, "shop", v, "%v", written)
	}
	require.Empty(t, PodLabels(Pod{NamespaceLabels: map[string]string{NamespaceName: "shop"}}), "no namespace has no name")
	old := NewLabelArray(New(SourceK8s, KeyPodNamespace, "shop"), New(SourceK8s, "app", "a"))
	require.Equal(t, PodLabels(Pod{Namespace: "shop", Labels: map[string]string{"app": "a"}}), WithNamespaceName(old))
	for _, other := range []LabelArray{nil, NewLabelArray(Reserved(NameInit))} {
		require.Equal(t, other, WithNamespaceName(other))
	}
}

// G01, CVE-2023-39347.
func TestPodAuthorCannotSmuggleLabels(t *testing.T) {
	smuggled := map[string]string{
		KeyPodNamespace: "kube-system", KeyCluster: "other", KeyServiceAccount: "admin",
		KeyNamespaceLabels: "x", KeyNamespaceName: "kube-system", KeyNamespaceLabels + ".team": "root", "io.cilium.k8s.namespace.labels.extra": "1",
		"io.cilium.k8s": "1", "io.cilium.k8s.anything": "1",
		"reserved:host": "", "reserved": "host", "$host": "", "host;reserved:world": "", "a=b": "", "": "x", "a b": "", `a\`: "",
		"cidr:10.0.0.0/8": "",
	}
	want := []string{
		"k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop", "k8s:io.cilium.k8s.namespace.labels.team=a", "k8s:io.cilium.k8s.policy.cluster=c1",
		"k8s:io.cilium.k8s.policy.serviceaccount=web", "k8s:io.kubernetes.pod.namespace=shop", "k8s:reserved=host",
	}
	a := PodLabels(Pod{Namespace: "shop", ServiceAccount: "web", Cluster: "c1", Labels: smuggled,
		NamespaceLabels: map[string]string{"team": "a", "x;y": "1"}})
	require.Equal(t, want, a.Strings())
	require.False(t, a.HasReserved(NameHost))

	t.Run("also when the real value is not known", func(t *testing.T) {
		require.Equal(t, []string{"k8s:reserved=host"}, PodLabels(Pod{Labels: smuggled}).Strings())
	})
}

func TestDefaultFilter(t *testing.T) {
	relevant := []string{
		"k8s:app=x", "k8s:statefulset.kubernetes.io/pod-name=a-0", "k8s:app.kubernetes.io/name=x", "k8s:io.kubernetes.pod.namespace=n", "reserved:host", "container:foo=bar",
		"k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=n", "k8s:io.cilium.k8s.policy.cluster=c",
		"k8s:io.cilium.k8s.policy.serviceaccount=s", "cidr:10.0.0.0/8",
	}
	only := []string{
		"k8s:io.kubernetes.container.name=x", "k8s:kubernetes.io/os=linux", "k8s:node.beta.kubernetes.io/x=1", "k8s:k8s.io/x=1",
		"k8s:pod-template-hash=1", "k8s:pod-template-generation=1", "k8s:controller-revision-hash=1", "k8s:controller-uid=1",
		"k8s:annotation.x=1", "k8s:etcd_node=1", "k8s:apps.kubernetes.io/pod-index=0",
		"k8s:batch.kubernetes.io/job-completion-index=0", "k8s:batch.kubernetes.io/controller-uid=1", "k8s:topology.kubernetes.io/zone=z",
	}
	for _, f := range []*Filter{DefaultFilter(), mustFilter(t)} {
		for _, s := range relevant {
			id, info := f.Split(mustArray(t, s))
			require.Len(t, id, 1, s)
			require.Empty(t, info, s)
		}
		for _, s := range only {
			id, info := f.Split(mustArray(t, s))
			require.Empty(t, id, s)
			require.Len(t, info, 1, s)
		}
	}
	id, info := (*Filter)(nil).Split(mustArray(t, "k8s:pod-template-hash=1"))
	require.Len(t, id, 1)
	require.Empty(t, info)
}

func TestConfiguredFilter(t *testing.T) {
	for _, c := range []struct {
		name     string
		rules    []string
		label    string
		relevant bool
	}{
		{"an exclusion takes a label out", []string{"!ci-run"}, "k8s:ci-run=7", false},
		{"an exclusion leaves others in", []string{"!ci-run"}, "k8s:app=web", true},
		{"an inclusion leaves others out", []string{"app"}, "k8s:tier=1", false},
		{"an inclusion matches a prefix", []string{"app"}, "k8s:application=1", true},
		{"an inclusion with an end matches exactly", []string{"app$"}, "k8s:application=1", false},
		{"an inclusion keeps the built-in inclusions", []string{"app"}, "k8s:app.kubernetes.io/name=x", true},
		{"the longest match decides", []string{"team", "!team-tmp"}, "k8s:team-tmp=1", false},
		{"a configured inclusion beats a built-in exclusion of equal length", []string{"pod-template-hash"}, "k8s:pod-template-hash=1", true},
		{"a configured exclusion beats a built-in inclusion of equal length", []string{`!io\.cilium\.k8s\.namespace\.labels`}, "k8s:io.cilium.k8s.namespace.labels.a=1", false},
		{"exclusion wins a tie", []string{"app", "!app"}, "k8s:app=1", false},
		{"a source limits the rule", []string{"container:!app"}, "k8s:app=1", true},
		{"a source limits the rule to itself", []string{"!container:app"}, "container:app=1", false},
		{"source any is no limit", []string{"any:!app"}, "k8s:app=1", false},
		{"the namespace cannot be taken out", []string{`!io\.kubernetes\.pod\.namespace`, "!.*"}, "k8s:io.kubernetes.pod.namespace=n", true},
		{"reserved labels cannot be taken out", []string{"!.*"}, "reserved:host", true},
		{"a group is no source", []string{"!(?:a|b)c"}, "k8s:bc=1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, info := mustFilter(t, c.rules...).Split(mustArray(t, c.label))
			require.Equal(t, c.relevant, len(id) == 1)
			require.Equal(t, !c.relevant, len(info) == 1)
		})
	}
	for rule, why := range map[string]string{
		"(": "missing closing", "": "nothing to match", "!": "nothing to match", "k8s:": "nothing to match", ":a": "source",
		"!k8s:!a": "two '!'", "!reserved:host": "always take part",
	} {
		_, err := ParseFilter([]string{rule})
		require.ErrorContains(t, err, why, rule)
		require.ErrorContains(t, err, "write [source:]")
	}
}

func mustFilter(t *testing.T, rules ...string) *Filter {
	f, err := ParseFilter(rules)
	require.NoError(t, err)
	return f
}

func mustArray(t *testing.T, texts ...string) LabelArray {
	a, err := ParseArray(texts...)
	require.NoError(t, err)
	return a
}

func FuzzParseFilter(f *testing.F) {
	f.Add("!k8s:app", "app")
	f.Add("(a|b", "b")
	f.Fuzz(func(t *testing.T, rule, key string) {
		fl, err := ParseFilter([]string{rule})
		if err != nil {
			return
		}
		a := NewLabelArray(Label{"k8s", key, ""})
		id, info := fl.Split(a)
		if len(id)+len(info) != len(a) {
			t.Fatalf("a label got lost: %v %v", id, info)
		}
	})
}
