package identity

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
)

func set(t *testing.T, texts ...string) labels.LabelArray {
	a, err := labels.ParseArray(texts...)
	require.NoError(t, err)
	return a
}

func TestReservedTable(t *testing.T) {
	want := map[NumericIdentity]string{1: "host", 2: "world", 3: "unmanaged", 4: "health", 5: "init",
		6: "remote-node", 7: "kube-apiserver", 8: "ingress", 9: "world-ipv4", 10: "world-ipv6"}
	table := ReservedIdentities()
	require.Len(t, table, len(want))
	for id, name := range want {
		require.Equal(t, name, id.String())
		require.True(t, table[id].HasReserved(name))
		got, ok := LookupReservedByLabels(table[id])
		require.True(t, ok)
		require.Equal(t, id, got)
		parsed, err := Parse(name)
		require.NoError(t, err)
		require.Equal(t, id, parsed)
		require.True(t, id.IsReserved())
	}
	require.True(t, table[ReservedKubeAPIServer].HasReserved("remote-node"))
	require.NotContains(t, table, ReservedClosed, "no selector may match it")
	_, ok := LabelsOfReserved(ReservedClosed)
	require.False(t, ok)
	require.True(t, ReservedClosed.IsReserved())
	parsed, err := Parse("closed")
	require.NoError(t, err)
	require.Equal(t, ReservedClosed, parsed)
	require.Equal(t, "closed", ReservedClosed.String())
	delete(table, 1)
	require.Contains(t, ReservedIdentities(), ReservedHost, "the caller has a copy")
}

func TestLookupReservedByLabels(t *testing.T) {
	for _, c := range []struct {
		name string
		set  []string
		want NumericIdentity // 0: not reserved
	}{
		{"host keeps its number with node labels", []string{"reserved:host", "node:zone=a"}, 1},
		{"host beats kube-apiserver", []string{"reserved:host", "reserved:kube-apiserver"}, 1},
		{"remote node with labels", []string{"reserved:remote-node", "node:a=b"}, 6},
		{"remote node and kube-apiserver", []string{"reserved:remote-node", "reserved:kube-apiserver"}, 7},
		{"world alone", []string{"reserved:world"}, 2},
		{"world with a prefix is no reserved number", []string{"reserved:world-ipv4", "cidr:10.0.0.0/8"}, 0},
		{"init with a label of a pod is no reserved number", []string{"reserved:init", "k8s:app=x"}, 0},
		{"world on a pod is no reserved number", []string{"reserved:world", "k8s:app=x"}, 0},
		{"the key alone does not make it reserved", []string{"k8s:host"}, 0},
		{"an unknown reserved name", []string{"reserved:nobody"}, 0},
		{"the name of number 0", []string{"reserved:unknown"}, 0},
		{"the number without labels", []string{"reserved:closed"}, 0},
		{"nothing", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, ok := LookupReservedByLabels(set(t, c.set...))
			require.Equal(t, c.want != 0, ok)
			require.Equal(t, c.want, id)
		})
	}
}

func TestScopeForLabels(t *testing.T) {
	for _, c := range []struct {
		name string
		set  []string
		want Scope
	}{
		{"a pod", []string{"k8s:app=x"}, ScopeGlobal},
		{"an outside prefix", []string{"cidr:10.0.0.0/8", "reserved:world-ipv4"}, ScopeLocal},
		{"the prefix of a pod, without world", []string{"cidr:10.0.0.0/8"}, ScopeLocal},
		{"a DNS name", []string{"fqdn:example.com", "reserved:world"}, ScopeLocal},
		{"a group of prefixes", []string{"cidrgroup:a"}, ScopeLocal},
		{"a pod with a prefix label", []string{"cidr:10.0.0.0/8", "k8s:app=x"}, ScopeGlobal},
		{"a single node", []string{"reserved:remote-node", "node:a=b"}, ScopeRemoteNode},
		{"nothing", nil, ScopeGlobal},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, ScopeForLabels(set(t, c.set...))) })
	}
}

func TestLayout(t *testing.T) {
	require.Equal(t, ScopeLocal, MinLocalIdentity.Scope())
	require.Equal(t, ScopeLocal, MaxLocalIdentity.Scope())
	require.Equal(t, ScopeRemoteNode, MinRemoteNodeIdentity.Scope())
	require.Equal(t, ScopeRemoteNode, MaxRemoteNodeIdentity.Scope())
	require.Equal(t, ScopeGlobal, MaxNumericIdentity.Scope())
	require.EqualValues(t, 3, NumericIdentity(3<<16|5).ClusterID())
	require.EqualValues(t, 0, NumericIdentity(1<<24|3<<16).ClusterID())
	require.True(t, MinLocalIdentity.IsLocal())
	require.False(t, NumericIdentity(256).IsReserved())
	require.False(t, InvalidIdentity.IsReserved())
	require.Equal(t, "local", ScopeLocal.String())
}

func TestTextOfANumber(t *testing.T) {
	for _, id := range []NumericIdentity{0, 1, 11, 256, MinLocalIdentity, 1<<32 - 1} {
		got, err := Parse(id.String())
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	for _, bad := range []string{"", "-1", "4294967296", "nobody", "0x10"} {
		_, err := Parse(bad)
		require.ErrorContains(t, err, "neither a number")
	}
}

func TestIdentity(t *testing.T) {
	i := New(300, set(t, "k8s:a=b"))
	require.Equal(t, labels.Label{Source: "k8s", Key: "a", Value: "b"}, i.Labels["a"])
	m := IdentityMap{300: i.LabelArray, 2: nil}
	require.Equal(t, []NumericIdentity{2, 300}, m.IDs())
	c := m.Clone()
	delete(c, 2)
	require.Len(t, m, 2)
}

func FuzzParse(f *testing.F) {
	f.Add("host")
	f.Add("16777217")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := Parse(s); err == nil {
			if again, err := Parse(id.String()); err != nil || again != id {
				t.Fatalf("%q is %d, printed %q, read back %d, %v", s, id, id, again, err)
			}
		}
	})
}
