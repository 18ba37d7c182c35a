package cmd

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/testutils"
)

// Either table of connections counts, and only what has not expired.
func TestAFullTableOfConnectionsIsTold(t *testing.T) {
	env := testutils.Kernel(t)
	m, err := openMaps(bpf.Root{Path: env.BPFRoot}, &Config{CTEntries: 1024, IPCacheEntries: 16, PolicyEntries: 16, EventBytes: 1 << 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, os.RemoveAll(filepath.Join(env.BPFRoot, "maps")))
	})
	sweep := func() bool {
		require.NoError(t, m.sweepFlows(func(ctmap.Flow) {}))
		return m.crowded.Load()
	}
	for _, table := range []*ctmap.Map{m.CT4, m.CT6} {
		fill := func(fill byte) {
			key, value := make([]byte, table.Map().KeySize()), make([]byte, table.Map().ValueSize())
			for i := range value {
				value[i] = fill
			}
			for n := range table.Map().MaxEntries() + 512 { // more than it holds
				binary.LittleEndian.PutUint32(key, n)
				require.NoError(t, table.Map().Update(key, value, ebpf.UpdateAny))
			}
		}
		require.False(t, sweep())
		fill(0xff)
		require.True(t, sweep(), "full of live connections")
		require.True(t, sweep())
		fill(0) // expired at boot
		require.False(t, sweep())
	}
}

// What a flow carried is counted while it is open and, once the sweep has taken it,
// kept: neither lost nor counted twice.
func TestTheSweepKeepsWhatAFlowCarried(t *testing.T) {
	env := testutils.Kernel(t)
	m, err := openMaps(bpf.Root{Path: env.BPFRoot}, &Config{CTEntries: 1024, IPCacheEntries: 16, PolicyEntries: 16, EventBytes: 1 << 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, os.RemoveAll(filepath.Join(env.BPFRoot, "maps")))
	})
	pod := netip.MustParseAddr("10.0.0.1")
	c := &counters{maps: m, ended: map[counterKey]volume{}, at: func(a netip.Addr) (uint16, bool) { return 7, a == pod },
		rule: func(policytypes.RuleID) (policytypes.RuleRef, bool) { return policytypes.RuleRef{}, false }}
	flow := func(n byte, expires uint32) {
		key := [16]byte{0: 10, 3: 1, 4: 10, 7: n, 12: 6} // from the pod to 10.0.0.n
		var value [40]byte
		for i, v := range []uint64{3, 100, uint64(expires), 0, 5} { // packets, bytes, expires and flags, revisions, egress rule
			binary.NativeEndian.PutUint64(value[8*i:], v)
		}
		require.NoError(t, m.CT4.Map().Update(key[:], value[:], ebpf.UpdateAny))
	}
	carried := func(want uint64) {
		t.Helper()
		got, err := c.of(7)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, []uint64{3 * want, 100 * want}, []uint64{got[0].Packets, got[0].Bytes})
	}
	flow(2, ^uint32(0))
	carried(1)
	flow(3, 0) // expired at boot
	carried(2)
	for range 2 {
		require.NoError(t, c.sweep())
		flows, err := m.CT4.Dump()
		require.NoError(t, err)
		require.Len(t, flows, 1, "the open one")
		carried(2)
	}
}

// An agent that is given another size says which map differs; given the former one it starts.
func TestAMapOfAnotherSizeIsNamed(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(filepath.Join(env.BPFRoot, "maps"))) })
	sizes := Config{CTEntries: 64, IPCacheEntries: 16, PolicyEntries: 16, EventBytes: 1 << 16}
	m, err := openMaps(root, &sizes)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	for name, change := range map[string]func(*Config){
		"weir_ct4":    func(c *Config) { c.CTEntries = 128 },
		"weir_events": func(c *Config) { c.EventBytes = 1 << 17 },
	} {
		other := sizes
		change(&other)
		_, err := openMaps(root, &other)
		require.ErrorContains(t, err, name)
	}
	m, err = openMaps(root, &sizes)
	require.NoError(t, err)
	require.NoError(t, m.Close())
}
