package pinned

import (
	"context"
	"errors"
	"io"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/eventsmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// Sizes are the rooms of the maps. 0 is what the map's package takes then.
type Sizes struct {
	IPCacheEntries uint32
	CTEntries      uint32 // of each family
	EventBytes     uint32
	Policies       policymap.Limits
}

// Maps are the maps of an agent, open.
type Maps struct {
	LXC       *lxcmap.Map
	Config    *lxcmap.Config
	Slots     *policymap.Slots
	IPCache   *ipcachemap.Map
	CT4, CT6  *ctmap.Map
	Fragments *ctmap.Fragments
	Metrics   *metricsmap.Map
	Events    *eventsmap.Map
	Shares    *eventsmap.Shares

	// Replaced are the maps that took the place of ones of another layout.
	Replaced []bpf.Replaced

	closers []io.Closer
}

// Open opens the pinned maps or creates them.
func Open(root bpf.Root, s Sizes) (*Maps, error) {
	return open(root, s, formers())
}

func open(root bpf.Root, s Sizes, formers map[string][]bpf.Layout) (_ *Maps, err error) {
	m := &Maps{}
	if m.Replaced, err = convert(root, s, formers); err == nil {
		err = m.open(root, s)
	}
	if err == nil {
		err = m.raiseRevision()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// open stops at the first map that cannot be had; Close closes those before it.
func (m *Maps) open(root bpf.Root, s Sizes) (err error) {
	if m.LXC, err = lxcmap.OpenOrCreate(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.LXC)
	if m.Config, err = lxcmap.OpenOrCreateConfig(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.Config)
	if m.Slots, err = policymap.Open(root, s.Policies); err != nil {
		return err
	}
	m.closers = append(m.closers, m.Slots)
	if m.IPCache, err = ipcachemap.OpenOrCreate(root, s.IPCacheEntries); err != nil {
		return err
	}
	m.closers = append(m.closers, m.IPCache)
	if m.CT4, err = ctmap.OpenOrCreate(root, ctmap.IPv4, s.CTEntries); err != nil {
		return err
	}
	m.closers = append(m.closers, m.CT4)
	if m.CT6, err = ctmap.OpenOrCreate(root, ctmap.IPv6, s.CTEntries); err != nil {
		return err
	}
	m.closers = append(m.closers, m.CT6)
	if m.Fragments, err = ctmap.OpenOrCreateFragments(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.Fragments)
	if m.Metrics, err = metricsmap.OpenOrCreate(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.Metrics)
	if m.Events, err = eventsmap.OpenOrCreate(root, s.EventBytes); err != nil {
		return err
	}
	m.closers = append(m.closers, m.Events)
	if m.Shares, err = eventsmap.OpenOrCreateShares(root); err != nil {
		return err
	}
	m.closers = append(m.closers, m.Shares)
	return nil
}

// Named are the maps by their names in C.
func (m *Maps) Named() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"weir_lxc": m.LXC.Map(), "weir_epconfig": m.Config.Map(), "weir_policy": m.Slots.Map(), "weir_ipcache": m.IPCache.Map(),
		"weir_ct4": m.CT4.Map(), "weir_ct6": m.CT6.Map(), "weir_frag": m.Fragments.Map(),
		ctmap.Former4: m.CT4.FormerMap(), ctmap.Former6: m.CT6.FormerMap(),
		"weir_metrics": m.Metrics.Map(), "weir_events": m.Events.Map(), "weir_shares": m.Shares.Map(),
	}
}

// resized is a map that took the place of one of another size.
type resized interface {
	Former() *ebpf.Map
	TakeOver() error
}

// TakeOver takes what former maps of other sizes hold over, of those that are
// unused, which says that no program knows them any more, and reports whether
// there is no former map left. Call it again until then.
func (m *Maps) TakeOver(ctx context.Context, unused func(context.Context, *ebpf.Map) (bool, error)) (done bool, err error) {
	done = true
	for _, r := range []resized{m.CT4, m.CT6, m.Events} {
		former := r.Former()
		if former == nil {
			continue
		}
		ok, err := unused(ctx, former)
		if err == nil && ok {
			err = r.TakeOver()
		}
		if err != nil {
			return false, err
		}
		done = done && r.Former() == nil
	}
	return done, nil
}

// Close closes what is open, last opened first. Pins stay.
func (m *Maps) Close() error {
	var errs []error
	for i := len(m.closers) - 1; i >= 0; i-- {
		errs = append(errs, m.closers[i].Close())
	}
	m.closers = nil
	return errors.Join(errs...)
}
