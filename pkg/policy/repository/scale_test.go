package repository

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// The size of a big cluster. All of it is valid input.
const (
	manyPolicies   = 5_000
	manyBlocks     = 50_000 // in the sets of the policies and one group
	manyIdentities = 20_000
	groupBlocks    = 10_000
)

// block is the n-th of many /28.
func block(n int) netip.Prefix {
	n *= 16
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{100 + byte(n>>24), byte(n >> 16), byte(n >> 8), byte(n)}), 28)
}

// bigPolicies are policies as an author writes them: everybody has a set of
// blocks and lets a peer in, and some are for all pods of a namespace.
func bigPolicies(t *testing.T) map[string][]*types.Policy {
	var group strings.Builder
	group.WriteString("apiVersion: cilium.io/v2alpha1\nkind: CiliumCIDRGroup\nmetadata: {name: partners}\nspec:\n  externalCIDRs:\n")
	for i := range groupBlocks {
		fmt.Fprintf(&group, "  - %s\n", block(manyBlocks-groupBlocks+i))
	}
	docs, err := k8s.Split([]byte(group.String()), "group.yaml")
	require.NoError(t, err)
	partners, err := docs[0].CIDRGroup()
	require.NoError(t, err)
	refs := &k8s.References{Groups: map[string]*k8s.CIDRGroup{"partners": partners}}
	out := map[string][]*types.Policy{}
	const each = (manyBlocks - groupBlocks) / manyPolicies
	for i := range manyPolicies {
		var set strings.Builder
		for b := range each {
			fmt.Fprintf(&set, "{cidr: %s}, ", block(i*each+b))
		}
		if i%1000 == 0 {
			set.WriteString("{cidrGroupRef: partners}, ")
		}
		text := fmt.Sprintf("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: n%05d, namespace: here}\nspec:\n  endpointSelector: {matchLabels: {app: local%d}}\n"+
			"  ingress: [{fromEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': ns%d, app: app%d}}]}]\n  egress: [{toCIDRSet: [%s], toPorts: [{ports: [{port: '443', protocol: TCP}]}]}]\n",
			i, i%100, i%1000, i%2000, set.String())
		objects, err := k8s.Decode([]byte(text), "p.yaml")
		require.NoError(t, err)
		ps, err := k8s.Translate(objects[0], k8s.Options{ClusterName: "default", References: refs})
		require.NoError(t, err)
		out[objects[0].ID()] = ps
	}
	return out
}

func TestABigClusterIsValidInput(t *testing.T) {
	policies := bigPolicies(t)
	r := newRepository(t, t.TempDir())
	asked := map[netip.Prefix]bool{}
	r.ObservePrefixChanges(func(put map[netip.Prefix]bool, gone []netip.Prefix) {
		require.Empty(t, gone)
		maps.Copy(asked, put)
	})
	for id, ps := range policies {
		_, err := r.ReplaceByResource(id, ps)
		require.NoError(t, err)
	}
	require.Len(t, asked, manyBlocks)
	ids := identity.IdentityMap{}
	for i := range manyIdentities {
		ids[identity.NumericIdentity(1000+i)] = podOf(fmt.Sprintf("ns%d", i%1000), fmt.Sprintf("app%d", i%2000))
	}
	require.NoError(t, r.UpdateIdentities(t.Context(), ids, nil))
	numbers, blocks := map[netip.Prefix]identity.NumericIdentity{}, identity.IdentityMap{}
	for p := range asked {
		id := identity.NumericIdentity(1<<24 + len(numbers))
		numbers[p], blocks[id] = id, labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
	}
	require.NoError(t, r.UpdateIdentities(t.Context(), blocks, nil))
	require.GreaterOrEqual(t, r.Index().Len(), manyIdentities+manyBlocks)

	for i := range 100 {
		answer, err := r.Resolve(policy.Subject{Identity: identity.NumericIdentity(500_000 + i), Labels: podOf("here", fmt.Sprintf("local%d", i))})
		require.NoError(t, err)
		lines := 50*8 + 20*10 // of its fifty policies all have eight blocks of their own, and twenty ten peers
		if i == 0 {
			lines += groupBlocks
		}
		require.InDelta(t, lines, len(answer.State), 10)
		mine, other := numbers[block(i*8+3)], numbers[block((i+1)*8)]
		require.Equal(t, types.Allow, answer.State.Decide(types.Egress, mine, mine, wtypes.ProtoTCP, 443).Verdict)
		require.Equal(t, types.Deny, answer.State.Decide(types.Egress, other, other, wtypes.ProtoTCP, 443).Verdict)
		require.Equal(t, types.Allow, answer.State.Decide(types.Ingress, identity.NumericIdentity(1000+i), 0, wtypes.ProtoTCP, 80).Verdict)
	}
	// Everybody is one line, however many there are.
	everybody := allowFrom("all", "open", "x", 80)
	everybody.Rules[0].Peers = []types.Peer{{Labels: &labels.Selector{}}, {Entity: types.EntityAll}}
	replace(t, r, everybody)
	require.LessOrEqual(t, len(resolve(t, r, "open", 700_000).State), 4)

	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	t.Logf("%d MiB of heap in use, %d MiB allocated in all", m.HeapAlloc>>20, m.TotalAlloc>>20)
	require.Less(t, m.HeapAlloc, uint64(1<<30))
	runtime.KeepAlive(r)
}

// One identity that appears and goes costs much the same in a cluster ten times
// as big: bytes are counted, as time is no matter for a test.
func TestOneIdentityCostsTheSameInABigCluster(t *testing.T) {
	const times = 20
	cost := func(identities, policies int) uint64 {
		n := grown(t, identities, policies, 100)
		n.addOne(t)
		require.Equal(t, 2, n.builds, "one endpoint builds, twice")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			n.addOne(t)
		}
		runtime.ReadMemStats(&after)
		require.Equal(t, 2*(times+1), n.builds)
		return (after.TotalAlloc - before.TotalAlloc) / times
	}
	small, big := cost(1_000, 100), cost(10_000, 1_000)
	t.Logf("%d bytes, then %d", small, big)
	require.LessOrEqual(t, 2*big, 3*small)
}
