package endpointmanager

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/id"
)

// ErrNotFound says that no endpoint answers to a reference.
var ErrNotFound = errors.New("no such endpoint")

// ErrAmbiguous says that several endpoints answer to a reference.
var ErrAmbiguous = errors.New("several endpoints match")

// Lookup finds the endpoint that a reference names. Endpoints that are being
// deleted are found too. Errors: ErrNotFound; ErrAmbiguous, for a container or
// pod with several interfaces.
func (m *Manager) Lookup(ref id.Ref) (*endpoint.Endpoint, error) {
	var found []*endpoint.Endpoint
	switch ref.Kind {
	case id.KindLocal:
		found = m.get(ref.ID)
	case id.KindCNIAttachment, id.KindIPv4, id.KindIPv6:
		found = m.get(m.owner(ref.String()))
	case id.KindContainer:
		found = m.ByContainer(ref.Text)
	case id.KindPod:
		found = m.where(func(en *entry) bool { return en.pod.Known() && en.pod.String() == ref.Text })
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%w: %s; list them with: weir endpoint list", ErrNotFound, ref)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%w: %s has %d interfaces; name one with cni-attachment-id:", ErrAmbiguous, ref, len(found))
}

// ByID returns the endpoint with a number, or nil.
func (m *Manager) ByID(n uint16) *endpoint.Endpoint { return first(m.get(n)) }

// ByAddr returns the endpoint with an address, or nil.
func (m *Manager) ByAddr(a netip.Addr) *endpoint.Endpoint {
	return first(m.get(m.owner(addrRef(a))))
}

// ByAttachment returns the endpoint of one interface of a container, or nil.
func (m *Manager) ByAttachment(containerID, ifName string) *endpoint.Endpoint {
	l := endpoint.Link{ContainerID: containerID, ContainerInterface: ifName}
	return first(m.get(m.owner(attachmentRef(l))))
}

// ByContainer returns the endpoints of a container, by number.
func (m *Manager) ByContainer(containerID string) []*endpoint.Endpoint {
	return m.where(func(en *entry) bool { return en.link.ContainerID == containerID })
}

// List returns all endpoints, by number.
func (m *Manager) List() []*endpoint.Endpoint {
	return m.where(func(*entry) bool { return true })
}

// Rows returns the snapshots of all endpoints, by number.
func (m *Manager) Rows() []*endpoint.Row {
	var rows []*endpoint.Row
	for _, e := range m.List() {
		rows = append(rows, e.Row())
	}
	return rows
}

func (m *Manager) owner(ref string) uint16 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.refs[ref]
}

func (m *Manager) get(n uint16) []*endpoint.Endpoint {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if en := m.byID[n]; en != nil && en.ep != nil {
		return []*endpoint.Endpoint{en.ep}
	}
	return nil
}

func (m *Manager) where(f func(*entry) bool) []*endpoint.Endpoint {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []*endpoint.Endpoint
	for _, en := range m.byID {
		if en.ep != nil && f(en) {
			out = append(out, en.ep)
		}
	}
	slices.SortFunc(out, func(a, b *endpoint.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func first(es []*endpoint.Endpoint) *endpoint.Endpoint {
	if len(es) == 0 {
		return nil
	}
	return es[0]
}

func attachmentRef(l endpoint.Link) string {
	return id.Ref{Kind: id.KindCNIAttachment, Text: l.Attachment()}.String()
}

// hostRef is no reference that a request may use.
func hostRef(l endpoint.Link) string { return "host-interface:" + l.HostInterface }

func addrRef(a netip.Addr) string {
	kind := id.KindIPv4
	if a.Is6() {
		kind = id.KindIPv6
	}
	return id.Ref{Kind: kind, Addr: a}.String()
}
