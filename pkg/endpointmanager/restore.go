package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
)

// RestoreReport says what Restore found.
type RestoreReport struct {
	Restored []*endpoint.Endpoint // they go on, and are built when their identity is there
	Kept     []*endpoint.Endpoint // their labels are not known: they stay as they are in the kernel until they are
	Removed  []uint16             // their link was gone, or their deletion had been interrupted
	Failed   []error              // records that collide with others, and removals that will be tried again
}

// Restore brings back the endpoints of an earlier agent from their records. Call it
// once, before the first Create; the reads of the API may be served as soon as it
// returns.
func (m *Manager) Restore(ctx context.Context, recs []endpoint.Record) RestoreReport {
	var rep RestoreReport
	var all []*endpoint.Endpoint
	for _, rec := range recs {
		e, err := m.register(rec)
		if err != nil {
			rep.Failed = append(rep.Failed, err)
			m.log.Error("Endpoint record not used", endpoint.LogEndpointID, rec.ID, endpoint.LogError, err)
			continue
		}
		all = append(all, e)
	}
	// From here on all are registered; none has been built.
	var keep []*endpoint.Endpoint
	for _, e := range all {
		if err := m.cfg.Remover.Adopt(e); err != nil {
			e.Note(endpoint.TopicBPF, endpoint.SeverityWarning, "%v", err)
		}
		reason := "its deletion was interrupted"
		if e.Row().State.Alive() {
			if !m.missing(e) {
				keep = append(keep, e)
				continue
			}
			reason = "its interface went away while the agent was not running"
		}
		m.log.Info("Removing a restored endpoint", endpoint.LogEndpointID, e.ID, "reason", reason)
		if err := m.Delete(ctx, e, reason); err != nil {
			rep.Failed = append(rep.Failed, err)
			continue
		}
		rep.Removed = append(rep.Removed, e.ID)
	}
	for _, e := range keep {
		if r := e.Row(); r.Identity != 0 && len(r.Labels) == 0 {
			rep.Kept = append(rep.Kept, e)
			continue
		}
		rep.Restored = append(rep.Restored, e)
		if err := e.Claim(ctx); err != nil {
			m.log.Warn("Identity of a restored endpoint not taken yet", endpoint.LogEndpointID, e.ID, endpoint.LogError, err)
		}
	}
	built := make(chan struct{})
	var labelled []*endpoint.Endpoint
	for _, e := range keep {
		if len(e.Row().Labels) > 0 {
			labelled = append(labelled, e)
		}
		e.Resume()
		m.cfg.Metadata.Resume(e, built)
	}
	go m.announceBuilt(labelled, built)
	rep.Restored = keep
	return rep
}

// relabelAfter is how long endpoints keep the labels of their records while one of
// them is not built again.
const relabelAfter = 30 * time.Second

// announceBuilt closes the channel once the endpoints have all been built again
// with the labels of their records. An identity that changed earlier would be
// unknown to the policy in force of those that are not, and cut allowed flows.
func (m *Manager) announceBuilt(restored []*endpoint.Endpoint, built chan struct{}) {
	defer close(built)
	ctx, cancel := context.WithTimeout(context.Background(), relabelAfter)
	defer cancel()
	if err := m.WaitRestored(ctx, restored); err != nil {
		m.log.Warn("Labels that changed while no agent ran are taken before all endpoints are built again", endpoint.LogError, err)
	}
}

// WaitRestored returns when each endpoint that Restore brought back was built,
// or tried to: it holds its identity again and has told the ipcache of its
// addresses. One that goes away is not waited for.
func (m *Manager) WaitRestored(ctx context.Context, restored []*endpoint.Endpoint) error {
	var errs []error
	for _, e := range restored {
		_, err := e.Wait(ctx, func(r *endpoint.Row) bool { return !r.Restored || r.AttemptedRevision > 0 || !r.State.Alive() })
		if err != nil && !errors.Is(err, endpoint.ErrNotAlive) {
			errs = append(errs, fmt.Errorf("endpoint %d is not built again yet: %w", e.ID, err))
		}
	}
	return errors.Join(errs...)
}

// Reserve keeps a number from being given out, as that of a link that no endpoint
// could be made of. One that is taken already is kept by that.
func (m *Manager) Reserve(number uint16) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.pool.Reserve(number) // in use, or no number of an endpoint
}

// register takes a restored endpoint's number and keys, and starts it.
func (m *Manager) register(rec endpoint.Record) (*endpoint.Endpoint, error) {
	l := rec.Link()
	en := newEntry(rec.ID, l, rec.Pod())
	close(en.ready)
	m.mu.Lock()
	err := m.linkFree(l)
	if owner, taken := m.refs[attachmentRef(l)]; taken && err == nil {
		err = &DuplicateError{"container interface", l.Attachment(), owner}
	}
	if err == nil {
		err = m.pool.Reserve(rec.ID)
	}
	if err == nil {
		m.index(en)
	}
	m.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("record of endpoint %d: %w", rec.ID, err)
	}
	e := endpoint.Restore(m.cfg.Endpoint, rec)
	m.mu.Lock()
	en.ep = e
	m.mu.Unlock()
	return e, nil
}
