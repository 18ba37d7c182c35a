package cmd

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/eventsmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// kernelMaps are the agent's pinned maps.
type kernelMaps struct {
	lxc       *lxcmap.Map
	words     *lxcmap.Config
	slots     *policymap.Slots
	ipcache   *ipcachemap.Map
	ct4, ct6  *ctmap.Map
	fragments *ctmap.Fragments
	metrics   *metricsmap.Map
	events    *eventsmap.Map
	closers   []func() error

	crowded atomic.Bool // as the last sweep found the tables of connections
}

// openMaps opens the pinned maps or creates them; one whose layout differs is
// an error that says what to do.
func openMaps(root bpf.Root, c *Config) (*kernelMaps, error) {
	m := &kernelMaps{}
	if err := m.open(root, c); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// open stops at the first map that cannot be had; close closes those before it.
func (m *kernelMaps) open(root bpf.Root, c *Config) (err error) {
	if m.lxc, err = lxcmap.OpenOrCreate(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.lxc.Close)
	if m.words, err = lxcmap.OpenOrCreateConfig(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.words.Close)
	if m.slots, err = policymap.Open(root, policymap.Limits{Entries: int(c.PolicyEntries)}); err != nil {
		return err
	}
	m.closers = append(m.closers, m.slots.Close)
	if m.ipcache, err = ipcachemap.OpenOrCreate(root, c.IPCacheEntries); err != nil {
		return err
	}
	m.closers = append(m.closers, m.ipcache.Close)
	if m.ct4, err = ctmap.OpenOrCreate(root, ctmap.IPv4, c.CTEntries); err != nil {
		return err
	}
	m.closers = append(m.closers, m.ct4.Close)
	if m.ct6, err = ctmap.OpenOrCreate(root, ctmap.IPv6, c.CTEntries); err != nil {
		return err
	}
	m.closers = append(m.closers, m.ct6.Close)
	if m.fragments, err = ctmap.OpenOrCreateFragments(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.fragments.Close)
	if m.metrics, err = metricsmap.OpenOrCreate(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.metrics.Close)
	if m.events, err = eventsmap.OpenOrCreate(root, c.EventBytes); err != nil {
		return err
	}
	m.closers = append(m.closers, m.events.Close)
	return nil
}

// named are the maps by their name in C, for the loader.
func (m *kernelMaps) named() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"weir_lxc": m.lxc.Map(), "weir_epconfig": m.words.Map(), "weir_policy": m.slots.Map(), "weir_ipcache": m.ipcache.Map(),
		"weir_ct4": m.ct4.Map(), "weir_ct6": m.ct6.Map(), "weir_frag": m.fragments.Map(),
		"weir_metrics": m.metrics.Map(), "weir_events": m.events.Map(),
	}
}

// infos tells the size of every map. Policy maps are counted together.
func (m *kernelMaps) infos(root bpf.Root) ([]gen.MapInfo, error) {
	lxc, err1 := m.lxc.MemoryBytes()
	ipcache, err2 := m.ipcache.MemoryBytes()
	metrics, err3 := m.metrics.MemoryBytes()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("measuring maps: %w", err)
	}
	sizes := map[string]uint64{
		"weir_lxc": lxc, "weir_epconfig": m.words.MemoryBytes(), "weir_policy": m.slots.MemoryBytes(), "weir_ipcache": ipcache,
		"weir_ct4": m.ct4.MemoryBytes(), "weir_ct6": m.ct6.MemoryBytes(), "weir_frag": m.fragments.MemoryBytes(),
		"weir_metrics": metrics, "weir_events": m.events.MemoryBytes(),
	}
	var out []gen.MapInfo
	for name, em := range m.named() {
		out = append(out, gen.MapInfo{Name: name, Type: em.Type().String(), Pin: root.Map(name), MaxEntries: em.MaxEntries(), Bytes: sizes[name]})
	}
	return out, nil
}

// sweepFlows removes expired connections, calls gone with each, and notes
// whether those that are left crowd their table.
func (m *kernelMaps) sweepFlows(gone func(ctmap.Flow)) error {
	now := uint32(bpf.FlowTime().Seconds())
	_, left4, err4 := m.ct4.GC(now, gone)
	_, left6, err6 := m.ct6.GC(now, gone)
	m.crowded.Store(crowds(left4, m.ct4) || crowds(left6, m.ct6))
	return errors.Join(err4, err6)
}

// crowds tells whether a table is as full as it gets, or nearly. The kernel
// pushes connections out before all room is taken: each CPU keeps some of it free.
func crowds(flows int, table *ctmap.Map) bool {
	return 4*uint64(flows) >= 3*uint64(table.Map().MaxEntries())
}

// close closes what is open, last opened first. Pins stay.
func (m *kernelMaps) close() error {
	var errs []error
	for i := len(m.closers) - 1; i >= 0; i-- {
		errs = append(errs, m.closers[i]())
	}
	return errors.Join(errs...)
}
