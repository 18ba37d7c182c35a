package lint

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/simulate"
)

// How many peers are asked about depends on the rules, not on how many pods there are.
func TestManyPodsOfOneKindAreAskedAboutOnce(t *testing.T) {
	objects, err := k8s.Decode([]byte(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: x},
  spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {id: "1"}}}], ports: [{port: 80}]}]}}`), "a")
	require.NoError(t, err)
	asked := func(pods int) int {
		var w World
		for i := range pods {
			w.Pods = append(w.Pods, simulate.Pod{Name: fmt.Sprint("x/", i), Labels: labels.PodLabels(labels.Pod{Namespace: "x", Labels: map[string]string{"id": fmt.Sprint(i)}})})
		}
		return newLinter(w, objects, k8s.Options{}, maxAsked).asked
	}
	require.NotZero(t, asked(4))
	require.Equal(t, asked(4), asked(400))
}

func TestWhatIsTooMuchToAskIsSaid(t *testing.T) {
	objects, err := k8s.Decode([]byte(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: x}, spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}, {ports: [{port: 80}]}]}}`), "a")
	require.NoError(t, err)
	w := World{Pods: []simulate.Pod{{Name: "x/a", Labels: labels.PodLabels(labels.Pod{Namespace: "x"})}}}
	found, leftOut := Check(objects, w, k8s.Options{})
	require.Len(t, found, 1, "the second rule is shadowed")
	require.Empty(t, leftOut)
	l := newLinter(w, objects, k8s.Options{}, 3)
	require.Empty(t, l.found)
	require.LessOrEqual(t, l.asked, 3)
	require.Len(t, l.leftOut, 1)
	require.Contains(t, l.leftOut[0], "WL302")
}

func TestTheFirstOfEachClassStandsForTheOthers(t *testing.T) {
	c := cluster{classes: [][]identity.NumericIdentity{{1, 2, 3, 900}, {5}, {7, 8}}}
	marks := map[identity.NumericIdentity][]byte{1: {0}, 3: {0}, 5: {1}}
	require.Equal(t, []identity.NumericIdentity{1, 2, 3, 5, 7}, c.firstOf(marks))
}

func TestAddressesOfPodsAreFoundByTheirOrder(t *testing.T) {
	k := newKnown(World{Pods: []simulate.Pod{
		{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")}},
		{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.1")}},
	}})
	pod, n := k.inside(netip.MustParsePrefix("10.0.0.0/24"))
	require.Equal(t, []int{1, 2}, []int{pod, n})
	pod, n = k.inside(netip.MustParsePrefix("fd00::/64"))
	require.Equal(t, []int{0, 1}, []int{pod, n})
	_, n = k.inside(netip.MustParsePrefix("10.0.2.0/24"))
	require.Zero(t, n)
}

func TestOnlyPodsWithTheRarestLabelAreLookedAt(t *testing.T) {
	s := newPodSet([]simulate.Pod{{Labels: labels.PodLabels(labels.Pod{Namespace: "x", Labels: map[string]string{"app": "a"}})},
		{Labels: labels.PodLabels(labels.Pod{Namespace: "y", Labels: map[string]string{"app": "a"}})}})
	is := func(key, value string) labels.Requirement {
		return labels.Requirement{Source: labels.SourceAny, Key: key, Operator: labels.In, Values: []string{value}}
	}
	require.True(t, s.any(labels.NewSelector(is("app", "a"), is(labels.KeyPodNamespace, "y"))))
	require.False(t, s.any(labels.NewSelector(is("app", "a"), is(labels.KeyPodNamespace, "z"))))
	require.True(t, s.any(labels.NewSelector()))
	require.False(t, s.any(labels.NewSelector(labels.Requirement{Key: "app", Operator: labels.DoesNotExist})))
}
