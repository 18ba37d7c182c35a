package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// remover is endpoint/regenerator: it takes endpoints out of the kernel and
// takes over what an earlier agent left there.
type remover interface {
	Remove(ctx context.Context, e *endpoint.Endpoint, free func()) error
	Adopt(e *endpoint.Endpoint) error
}

// resumer is endpoint/metadata: it keeps the labels of restored endpoints right,
// and changes those of a record once the channel is closed.
type resumer interface {
	Resume(e *endpoint.Endpoint, built <-chan struct{})
}

// linkChecker says whether the host side of an endpoint's link still exists.
type linkChecker interface {
	LinkExists(l endpoint.Link) (bool, error)
}

// revisionBumper is lxcmap.Config.
type revisionBumper interface {
	BumpRevision(ids ...uint16) (revision uint32, err error)
}

// Config is what a Manager needs. All fields are required.
type Config struct {
	Logger   *slog.Logger
	Endpoint endpoint.Config // for every endpoint; Observe is set by the manager
	Remover  remover
	Metadata resumer
	Links    linkChecker
	Words    revisionBumper
}

// DuplicateError says that a request collides with an endpoint that exists.
type DuplicateError struct {
	What  string // "container interface", "host interface" or "address"
	Value string
	ID    uint16 // of the endpoint that has it
}

// Error names the value and its owner.
func (e *DuplicateError) Error() string {
	return fmt.Sprintf("%s %s belongs to endpoint %d; delete that endpoint first", e.What, e.Value, e.ID)
}

// Manager is the registry of an agent's endpoints.
type Manager struct {
	cfg Config
	log *slog.Logger
	obs observers

	mu   sync.RWMutex
	pool id.Pool
	byID map[uint16]*entry
	refs map[string]uint16 // attachments and addresses, in the form of id.Ref, and host interfaces
	gone map[uint16]bool   // marked by the last sweep
}

// entry is one registered endpoint. ep is nil until its record is on disk.
type entry struct {
	id    uint16
	link  endpoint.Link
	pod   endpoint.Pod
	ep    *endpoint.Endpoint
	err   error         // why ep stayed nil
	ready chan struct{} // closed when ep or err is set

	deleting chan struct{} // room for one: whose turn it is to delete
}

func newEntry(n uint16, l endpoint.Link, p endpoint.Pod) *entry {
	return &entry{id: n, link: l, pod: p, ready: make(chan struct{}), deleting: make(chan struct{}, 1)}
}

// New returns an empty registry.
func New(cfg Config) *Manager {
	m := &Manager{
		cfg: cfg, log: cfg.Logger, byID: map[uint16]*entry{},
		refs: map[string]uint16{}, gone: map[uint16]bool{},
	}
	m.cfg.Endpoint.Observe = m.obs.tell
	return m
}

// Create registers an endpoint for a link, and writes its record. The same
// request (attachment, link, pod) returns the endpoint that exists, with created
// false. One whose former link is gone is replaced, and keeps its settings; while
// that link lives, another one is a DuplicateError and changes nothing. Errors: a
// DuplicateError, id.ErrExhausted, or that the record cannot be written; then
// nothing is left of a new endpoint.
func (m *Manager) Create(ctx context.Context, row endpoint.Row) (e *endpoint.Endpoint, created bool, err error) {
	for {
		en, created, err := m.reserve(row)
		if err != nil {
			return nil, false, err
		}
		if created {
			e, err := m.begin(en, row)
			return e, err == nil, err
		}
		select {
		case <-en.ready:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		if en.ep == nil {
			return nil, false, en.err
		}
		old := en.ep.Row()
		reason := "its interface is gone and another one is attached"
		switch same := sameLink(old.Link, row.Link); {
		case !old.State.Alive():
			reason = "deleted"
		case same && samePod(old.Pod, row.Pod):
			return en.ep, false, m.NoteNetwork(en.ep, row.Network)
		case same || !m.missing(en.ep):
			return nil, false, &DuplicateError{"container interface", row.Attachment(), old.ID}
		}
		if err := m.Delete(ctx, en.ep, reason); err != nil {
			return nil, false, fmt.Errorf("the former endpoint of container interface %s: %w", row.Attachment(), err)
		}
		if samePod(old.Pod, row.Pod) {
			row.Settings = old.Settings
		}
	}
}

// begin makes the endpoint of a new entry.
func (m *Manager) begin(en *entry, row endpoint.Row) (*endpoint.Endpoint, error) {
	row.ID = en.id
	e, err := endpoint.New(m.cfg.Endpoint, row)
	if err != nil {
		m.unregister(en)
	}
	m.mu.Lock()
	en.ep, en.err = e, err
	m.mu.Unlock()
	close(en.ready)
	if err != nil {
		return nil, err
	}
	e.Enter(regeneration.StationAPIAccept, "")(nil)
	e.Enter(regeneration.StationCreated, "")(nil)
	return e, nil
}

// sameLink reports whether two descriptions are of one pair with the same addresses.
func sameLink(a, b endpoint.Link) bool {
	return a.HostInterface == b.HostInterface && a.IfIndex == b.IfIndex && a.IPv4 == b.IPv4 && a.IPv6 == b.IPv6
}

// samePod reports whether a request names the pod that an endpoint has. What one of
// them does not know is no difference.
func samePod(old, p endpoint.Pod) bool {
	return old.Name == p.Name && (old.Namespace == p.Namespace || old.Namespace == "") && (old.UID == p.UID || old.UID == "" || p.UID == "")
}

// NoteNetwork notes the CNI network of an endpoint that has none noted; another one
// than it has is a DuplicateError.
func (m *Manager) NoteNetwork(e *endpoint.Endpoint, network string) error {
	have := e.Row().Network
	switch {
	case network == "" || network == have:
		return nil
	case have != "":
		return &DuplicateError{"container interface", e.Row().Attachment() + " of network " + have, e.ID}
	}
	return e.Update(func(t *endpoint.Turn) { t.Row.Network = network })
}

// reserve takes a number and the keys for a link, or finds the entry of the same
// attachment.
func (m *Manager) reserve(row endpoint.Row) (*entry, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner, taken := m.refs[attachmentRef(row.Link)]; taken {
		return m.byID[owner], false, nil
	}
	if err := m.linkFree(row.Link); err != nil {
		return nil, false, err
	}
	n, err := m.pool.Take()
	if err != nil {
		return nil, false, err
	}
	en := newEntry(n, row.Link, row.Pod)
	m.index(en)
	return en, true, nil
}

// linkFree refuses what another endpoint has: two on one interface would take
// the programs of each other away.
func (m *Manager) linkFree(l endpoint.Link) error {
	if owner, taken := m.refs[hostRef(l)]; taken {
		return &DuplicateError{"host interface", l.HostInterface, owner}
	}
	for _, a := range l.Addrs() {
		if owner, taken := m.refs[addrRef(a)]; taken {
			return &DuplicateError{"address", a.String(), owner}
		}
	}
	return nil
}

func (m *Manager) index(en *entry) {
	m.byID[en.id] = en
	m.refs[attachmentRef(en.link)], m.refs[hostRef(en.link)] = en.id, en.id
	for _, a := range en.link.Addrs() {
		m.refs[addrRef(a)] = en.id
	}
}

// unregister forgets an endpoint and frees its number. It may be repeated.
func (m *Manager) unregister(en *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[en.id] != en {
		return
	}
	delete(m.byID, en.id)
	delete(m.gone, en.id)
	delete(m.refs, attachmentRef(en.link))
	delete(m.refs, hostRef(en.link))
	for _, a := range en.link.Addrs() {
		delete(m.refs, addrRef(a))
	}
	m.pool.Free(en.id)
}

// deleteAttempts is how often Delete tries before it leaves the rest to the sweep.
const deleteAttempts = 3

// Delete takes an endpoint down and returns when nothing of it is left. It
// cancels a creation or build in progress. Deleting twice at a time waits for
// the first. On an error the endpoint stays as disconnecting, and the next Sweep
// or the next agent goes on.
func (m *Manager) Delete(ctx context.Context, e *endpoint.Endpoint, reason string) error {
	en := m.entryOf(e)
	if en == nil {
		return nil // gone already
	}
	e.BeginDelete(reason)
	select {
	case en.deleting <- struct{}{}:
		defer func() { <-en.deleting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.entryOf(e) == nil {
		return nil // somebody else was faster
	}
	var err error
	for i := range deleteAttempts {
		if err = m.cfg.Remover.Remove(ctx, e, func() { m.unregister(en) }); err == nil {
			break
		}
		m.log.Warn("Endpoint not removed", endpoint.LogEndpointID, e.ID, endpoint.LogError, err, "attempt", i+1)
		if !pause(ctx, 50*time.Millisecond<<i) {
			return errors.Join(err, ctx.Err())
		}
	}
	if err != nil {
		return fmt.Errorf("%w; it will be tried again by the next sweep", err)
	}
	e.FinishDelete()
	return nil
}

func (m *Manager) entryOf(e *endpoint.Endpoint) *entry {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if en := m.byID[e.ID]; en != nil && en.ep == e {
		return en
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close ends the goroutines of all endpoints. Kernel and records stay.
func (m *Manager) Close() {
	for _, e := range m.List() {
		e.Close()
	}
}

// PolicyChanged tells every endpoint of a new revision of the repository.
// affected says whether the change concerns endpoints of a label set; nil: all.
// wait returns when the policy in force of those that are affected answers for
// the revision; one whose build fails is logged and does not hold up the others.
func (m *Manager) PolicyChanged(affected func(labels.LabelArray) bool, revision uint64) (wait func(context.Context)) {
	var hit []*endpoint.Endpoint
	for _, e := range m.List() {
		if e.PolicyChanged(affected, revision) {
			hit = append(hit, e)
		}
	}
	return func(ctx context.Context) {
		for _, e := range hit {
			if err := e.WaitForPolicyRevision(ctx, revision); err != nil {
				m.log.Warn("Policy change not in force everywhere", endpoint.LogError, err)
			}
		}
	}
}

// WaitForPolicyRevision returns when every endpoint's policy in force answers
// for the revision. The error names each endpoint that failed to reach it.
func (m *Manager) WaitForPolicyRevision(ctx context.Context, revision uint64) error {
	var errs []error
	for _, e := range m.List() {
		errs = append(errs, e.WaitForPolicyRevision(ctx, revision))
	}
	return errors.Join(errs...)
}

// BumpRevisions lets the live flows of every endpoint be judged again at their
// next packet, as is needed after a change of the ipcache.
func (m *Manager) BumpRevisions() error {
	var ids []uint16
	for _, e := range m.List() {
		if e.Row().State.Alive() {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := m.cfg.Words.BumpRevision(ids...)
	return err
}

// AddressChanged tells the endpoint that has an address which prefix identity
// covers it now.
func (m *Manager) AddressChanged(addr netip.Addr, prefix identity.NumericIdentity) {
	if e := m.ByAddr(addr); e != nil {
		e.SetPrefix(addr, prefix)
	}
}
