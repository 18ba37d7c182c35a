package repository

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// builders are endpoints that build, one after the other, when they are told to.
type builders struct {
	t        require.TestingT
	repo     *Repository
	subjects []policy.Subject
	builds   int
	last     policy.MapState
}

func (b *builders) PolicyChanged(affected func(labels.LabelArray) bool, _ uint64) func(context.Context) {
	for _, s := range b.subjects {
		if affected(s.Labels) {
			answer, err := b.repo.Resolve(s)
			require.NoError(b.t, err)
			b.builds, b.last = b.builds+1, answer.State
		}
	}
	return func(context.Context) {}
}

// podOf is what an agent makes of the labels of a pod.
func podOf(ns, app string) labels.LabelArray {
	return labels.PodLabels(labels.Pod{Namespace: ns, Cluster: "default", ServiceAccount: "default", Labels: map[string]string{"app": app},
		NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": ns}})
}

func inNamespace(ns, app string) labels.Selector {
	s := labels.Equals(labels.New(labels.SourceK8s, labels.KeyPodNamespace, ns)).With(
		labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyCluster, Operator: labels.In, Values: []string{"default"}})
	if app != "" {
		s = s.With(labels.Requirement{Source: labels.SourceK8s, Key: "app", Operator: labels.In, Values: []string{app}})
	}
	return s
}

// grown is a node with endpoints that build. Each is selected by as many of the
// policies as any other, each policy lets one peer in. The identities are spread over
// namespaces of 20, ten with the labels of one peer.
func grown(t require.TestingT, identities, policies, endpoints int) *builders {
	r, err := New(Config{})
	require.NoError(t, err)
	b := &builders{t: t, repo: r}
	r.ObservePrefixes(func(map[netip.Prefix]bool) {})
	for i := range policies {
		peer := inNamespace(fmt.Sprintf("ns%d", i/2), fmt.Sprintf("app%d", i))
		res := types.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: fmt.Sprintf("n%05d", i)}
		_, err := r.ReplaceByResource(fmt.Sprint(i), []*types.Policy{{Resource: res, Subject: inNamespace("here", fmt.Sprintf("local%d", i%endpoints)), IsolatesIngress: true, Rules: []types.Rule{{
			Ref: types.RuleRef{Resource: res, Section: types.SectionIngress}, Verdict: types.Allow,
			Peers: []types.Peer{{Labels: &peer}}, Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: 80}}}}}})
		require.NoError(t, err)
	}
	ids := identity.IdentityMap{}
	for i := range identities {
		ids[identity.NumericIdentity(10_000+i)] = podOf(fmt.Sprintf("ns%d", i/20), fmt.Sprintf("app%d", i/10))
	}
	for i := range endpoints {
		s := policy.Subject{Identity: identity.NumericIdentity(1000 + i), Labels: podOf("here", fmt.Sprintf("local%d", i))}
		ids[s.Identity] = s.Labels
		b.subjects = append(b.subjects, s)
	}
	r.Observe(b)
	require.NoError(t, r.UpdateIdentities(context.Background(), ids, nil))
	b.PolicyChanged(everybody, 0)
	b.builds = 0
	return b
}

// addOne makes an identity appear that one endpoint's policy is about, and go again.
func (b *builders) addOne(t require.TestingT) {
	one := identity.IdentityMap{9_000_000: podOf("ns3", "app7")}
	require.NoError(t, b.repo.UpdateIdentities(context.Background(), one, nil))
	require.NoError(t, b.repo.UpdateIdentities(context.Background(), nil, one))
}

var sizes = []struct{ identities, policies, endpoints int }{{1_000, 100, 100}, {10_000, 1_000, 100}, {20_000, 5_000, 100}}

// One identity appears and goes. The cost must not follow the size of the cluster.
func BenchmarkOneIdentity(b *testing.B) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("%d-identities-%d-policies", s.identities, s.policies), func(b *testing.B) {
			n := grown(b, s.identities, s.policies, s.endpoints)
			n.addOne(b)
			for b.Loop() {
				n.addOne(b)
			}
		})
	}
}
