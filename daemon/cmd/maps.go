package cmd

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/pinned"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// kernelMaps are the agent's pinned maps.
type kernelMaps struct {
	*pinned.Maps
	crowded atomic.Bool // as the last sweep found the tables of connections
}

// openMaps opens the pinned maps or creates them; one of another size is replaced,
// so is one of another layout, see package pinned.
func openMaps(root bpf.Root, c *Config) (*kernelMaps, error) {
	m, err := pinned.Open(root, pinned.Sizes{
		IPCacheEntries: c.IPCacheEntries, CTEntries: c.CTEntries, EventBytes: c.EventBytes, Policies: policymap.Limits{Entries: int(c.PolicyEntries)},
	})
	if err != nil {
		return nil, err
	}
	return &kernelMaps{Maps: m}, nil
}

// postponed names the settings whose change has to wait for the next start, because
// the last agent was killed while it carried out another one.
func (m *kernelMaps) postponed(c *Config) (names []string) {
	if m.CT4.Map().MaxEntries() != c.CTEntries || m.CT6.Map().MaxEntries() != c.CTEntries {
		names = append(names, "conntrack-entries")
	}
	if m.IPCache.Map().MaxEntries() != c.IPCacheEntries {
		names = append(names, "ipcache-entries")
	}
	if m.Events.Map().MaxEntries() != c.EventBytes {
		names = append(names, "event-buffer")
	}
	return names
}

// infos tells the size of every map. Policy maps are counted together.
func (m *kernelMaps) infos(root bpf.Root) ([]gen.MapInfo, error) {
	lxc, err1 := m.LXC.MemoryBytes()
	ipcache, err2 := m.IPCache.MemoryBytes()
	metrics, err3 := m.Metrics.MemoryBytes()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("measuring maps: %w", err)
	}
	sizes := map[string]uint64{
		"weir_lxc": lxc, "weir_epconfig": m.Config.MemoryBytes(), "weir_policy": m.Slots.MemoryBytes(), "weir_ipcache": ipcache,
		"weir_ct4": m.CT4.MemoryBytes(), "weir_ct6": m.CT6.MemoryBytes(), "weir_frag": m.Fragments.MemoryBytes(),
		"weir_metrics": metrics, "weir_events": m.Events.MemoryBytes(),
		ctmap.Former4: m.CT4.FormerBytes(), ctmap.Former6: m.CT6.FormerBytes(),
	}
	var out []gen.MapInfo
	for name, em := range m.Named() {
		out = append(out, gen.MapInfo{Name: name, Type: em.Type().String(), Pin: root.Map(name), MaxEntries: em.MaxEntries(), Bytes: sizes[name]})
	}
	return out, nil
}

// sweepFlows removes expired connections, calls gone with each, and notes
// whether those that are left crowd their table.
func (m *kernelMaps) sweepFlows(gone func(ctmap.Flow)) error {
	now := uint32(bpf.FlowTime().Seconds())
	_, left4, err4 := m.CT4.GC(now, gone)
	_, left6, err6 := m.CT6.GC(now, gone)
	m.crowded.Store(crowds(left4, m.CT4) || crowds(left6, m.CT6))
	return errors.Join(err4, err6)
}

// crowds tells whether a table is as full as it gets, or nearly. The kernel
// pushes connections out before all room is taken: each CPU keeps some of it free.
func crowds(flows int, table *ctmap.Map) bool {
	return 4*uint64(flows) >= 3*uint64(table.Map().MaxEntries())
}

// tellReplaced tells of maps that took the place of ones of another layout. Of those
// that are not known the entries were lost.
func (a *agent) tellReplaced() {
	for _, r := range a.maps.Replaced {
		a.log.Warn("A map of another layout was replaced", "pin", r.Path, "differences", r.Differences, "converted", r.Entries, "aside", r.Aside)
		if r.Aside == "" {
			continue
		}
		a.warnings.Set(health.Warning{
			Code: "map-set-aside", Subject: r.Aside,
			Text: fmt.Sprintf("%s was of a layout that this version does not know (%s), is set aside at %s and made anew; programs of before use it until they are replaced",
				r.Path, strings.Join(r.Differences, ", "), r.Aside),
			Next: "rm " + r.Aside,
		})
	}
}
