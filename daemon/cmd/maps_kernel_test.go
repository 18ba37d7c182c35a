package cmd

import (
	"bytes"
	"context"
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

func smallMaps(t *testing.T, env *testutils.Env) *kernelMaps {
	t.Helper()
	m, err := openMaps(bpf.Root{Path: env.BPFRoot}, &Config{CTEntries: 1024, IPCacheEntries: 16, PolicyEntries: 16, EventBytes: 1 << 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, os.RemoveAll(filepath.Join(env.BPFRoot, "maps")))
	})
	return m
}

// Either table of connections counts, and only what has not expired.
func TestAFullTableOfConnectionsIsTold(t *testing.T) {
	m := smallMaps(t, testutils.Kernel(t))
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
	m := smallMaps(t, testutils.Kernel(t))
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

// An agent that is given other sizes gives the maps these; a change that was not
// finished comes before another one, and what does not fit names the setting.
func TestMapsOfOtherSizes(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(filepath.Join(env.BPFRoot, "maps"))) })
	open := func(flows, prefixes, ring uint32) (*kernelMaps, []string) {
		t.Helper()
		c := &Config{CTEntries: flows, IPCacheEntries: prefixes, PolicyEntries: 16, EventBytes: ring}
		m, err := openMaps(root, c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m, m.postponed(c)
	}
	_, late := open(1024, 16, 1<<16)
	require.Empty(t, late)
	require.NoError(t, os.Link(root.Map("weir_ipcache"), root.Map("first_ipcache")))
	m, late := open(2048, 32, 1<<17)
	require.Empty(t, late)
	require.Equal(t, []uint32{2048, 2048, 32, 1 << 17}, []uint32{m.CT4.Map().MaxEntries(), m.CT6.Map().MaxEntries(), m.IPCache.Map().MaxEntries(), m.Events.Map().MaxEntries()})
	m, late = open(4096, 64, 1<<17)
	require.Equal(t, []string{"conntrack-entries"}, late)
	_, late = open(2048, 64, 1<<18)
	require.Equal(t, []string{"event-buffer"}, late)

	used := 3 // former maps
	unused := func(context.Context, *ebpf.Map) (bool, error) { used--; return used < 0, nil }
	done, err := m.TakeOver(t.Context(), unused)
	require.NoError(t, err)
	require.False(t, done, "programs use all of them")
	done, err = m.TakeOver(t.Context(), unused)
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, os.Rename(root.Map("first_ipcache"), root.Map("weir_ipcache_former"))) // that an agent died before it could drop
	_, late = open(2048, 128, 1<<17)
	require.Equal(t, []string{"ipcache-entries"}, late)
	require.NoError(t, bpf.Drop(nil, root.Map("weir_events"))) // as the reader of events would
	m, late = open(4096, 64, 1<<18)
	require.Empty(t, late)

	var keys [16]byte
	for i := range uint32(900) {
		binary.LittleEndian.PutUint32(keys[:], i)
		require.NoError(t, m.CT4.Map().Update(keys[:], bytes.Repeat([]byte{0xff}, 40), ebpf.UpdateAny))
	}
	_, err = m.TakeOver(t.Context(), func(context.Context, *ebpf.Map) (bool, error) { return true, nil })
	require.NoError(t, err)
	_, err = openMaps(root, &Config{CTEntries: 1024, IPCacheEntries: 64, PolicyEntries: 16, EventBytes: 1 << 18})
	require.ErrorContains(t, err, "give weir_ct4 room for 1024: it holds 900 live flows; give conntrack-entries at least 1200")
}
