package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// crowd is an index of pods of which each has the label app=a, and ten one team.
func crowd(pods int, ports types.NamedPorts) *Index {
	ids, e := identity.IdentityMap{}, Events{Pods: map[netip.Addr]Pod{}}
	for i := range pods {
		id := identity.NumericIdentity(1000 + i)
		ids[id] = labels.PodLabels(labels.Pod{Namespace: "x", Labels: map[string]string{"app": "a", "team": fmt.Sprint(i / 10)}})
		e.Pods[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = Pod{Identity: id, NamedPorts: ports}
	}
	x, _ := NewIndex(ids).Apply(e)
	return x
}

func TestASelectorIsSearchedByItsRarestLabel(t *testing.T) {
	x := crowd(500, nil)
	label := func(key, value string) labels.Requirement {
		return labels.Requirement{Source: labels.SourceK8s, Key: key, Operator: labels.In, Values: []string{value}}
	}
	s := labels.NewSelector(label("app", "a"), label("team", "3"), label(labels.KeyPodNamespace, "x"))
	peer := types.Peer{Labels: &s}
	require.Len(t, shortest(x.demanded(peer)), 10, "of 500 with the other two labels")
	require.Len(t, x.found(peer), 10)
	none := labels.NewSelector(label("app", "a"), label("team", "none"))
	require.Empty(t, shortest(x.demanded(types.Peer{Labels: &none})))
	require.Empty(t, x.found(types.Peer{Labels: &none}))
}

func TestANamedPortIsLookedUpForThePeerAlone(t *testing.T) {
	name := types.NamedPort{Name: "web", Proto: wtypes.ProtoTCP}
	x := crowd(500, types.NamedPorts{name: 80})
	everybody := types.Peer{Entity: types.EntityAll}
	count := func(each func(emit func(identity.NumericIdentity, uint16, bool))) (n int) {
		each(func(identity.NumericIdentity, uint16, bool) { n++ })
		return n
	}
	require.Equal(t, 500, count(func(emit func(identity.NumericIdentity, uint16, bool)) { x.eachNamed(everybody, name, emit) }))
	require.Equal(t, 1, count(func(emit func(identity.NumericIdentity, uint16, bool)) {
		x.eachNamedAt(everybody, name, []identity.NumericIdentity{1007, 0}, emit)
	}))

	// Two pods of one identity that disagree are told apart by their addresses.
	a, b := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.9.9.9")
	host := labels.NewLabelArray(labels.CIDRLabel(netip.PrefixFrom(a, 32)))
	x, _ = x.Apply(Events{Added: identity.IdentityMap{77: host}, Pods: map[netip.Addr]Pod{b: {Identity: 1007, NamedPorts: types.NamedPorts{name: 81}}}})
	require.Equal(t, 1, count(func(emit func(identity.NumericIdentity, uint16, bool)) {
		x.eachNamedAt(everybody, name, []identity.NumericIdentity{77}, func(id identity.NumericIdentity, number uint16, exact bool) {
			if id == 77 && number == 80 && exact {
				emit(id, number, exact)
			}
		})
	}))
}
