package cmd

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
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
