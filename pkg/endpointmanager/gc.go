package endpointmanager

import (
	"context"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
)

// SweepInterval is the default time between two sweeps.
const SweepInterval = 5 * time.Minute

// RunSweeps sweeps until the context ends. interval 0 means SweepInterval.
func (m *Manager) RunSweeps(ctx context.Context, interval time.Duration) {
	if interval <= 0 {
		interval = SweepInterval
	}
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			m.Sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// Sweep marks the endpoints whose link is gone, deletes those that the sweep
// before had marked too, and goes on with deletions that failed. It returns how
// many endpoints it deleted.
func (m *Manager) Sweep(ctx context.Context) (deleted int) {
	for _, e := range m.List() {
		reason := "an earlier attempt to delete it failed"
		if e.Row().State.Alive() {
			if !m.missing(e) || !m.mark(e.ID) {
				continue
			}
			reason = "its interface is gone"
		}
		m.log.Info("Sweeping an endpoint", endpoint.LogEndpointID, e.ID, "reason", reason)
		if err := m.Delete(ctx, e, reason); err != nil {
			m.log.Warn("Endpoint not swept; trying again with the next sweep", endpoint.LogEndpointID, e.ID, endpoint.LogError, err)
			continue
		}
		deleted++
	}
	return deleted
}

// missing reports whether the endpoint's link is certainly gone. A link that is
// there unmarks it.
func (m *Manager) missing(e *endpoint.Endpoint) bool {
	r := e.Row()
	there, err := m.cfg.Links.LinkExists(r.Link)
	if err != nil {
		m.log.Warn("Cannot tell whether an endpoint's interface exists", endpoint.LogEndpointID, e.ID, endpoint.LogError, err)
		return false
	}
	if there {
		m.mu.Lock()
		delete(m.gone, e.ID)
		m.mu.Unlock()
	}
	return !there
}

// mark marks an endpoint and reports whether it was marked before.
func (m *Manager) mark(n uint16) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.gone[n]
	m.gone[n] = true
	return before
}
