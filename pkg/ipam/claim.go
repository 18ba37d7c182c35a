package ipam

import (
	"fmt"
	"net/netip"
	"slices"
)

// Claim makes sure, before an endpoint gets them, that its addresses are leased
// to its owner. With a lease id that lease must hold them. Without one the owner
// leases exactly these, until Confirm; made says that this call did, and that the
// caller has to give them back if no endpoint comes of it.
// Errors: ErrUnknownLease, ErrConflict, ErrInUse, ErrNotInPool (also the gateway),
// a file that cannot be written.
func (m *IPAM) Claim(owner, pod, id string, addrs ...netip.Addr) (l Lease, made bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	if id != "" {
		l, err = m.held(owner, id, addrs)
		return l, false, err
	}
	if len(addrs) == 0 {
		return l, false, fmt.Errorf("lease addresses for %s: none is given", owner)
	}
	old := m.byOwner[owner]
	if old != nil && sameAddrs(old.Addrs(), addrs) {
		return *old, false, nil // in no pool any more, perhaps, but its owner's
	}
	name := m.poolOf(addrs[0])
	if name == "" {
		return l, false, fmt.Errorf("lease addresses for %s: address %s %w %s", owner, addrs[0], ErrNotInPool, m.poolNames())
	}
	r := Request{Owner: owner, Pod: pod, Pool: name, Requested: addrs, IPv4: addrs[0].Is4(), IPv6: addrs[0].Is6(), Expiration: true}
	l, err = m.allocate(r)
	return l, err == nil, err
}

// held is the lease of an id if the owner has it with these addresses.
func (m *IPAM) held(owner, id string, addrs []netip.Addr) (Lease, error) {
	l := m.leases[id]
	switch {
	case l == nil:
		return Lease{}, fmt.Errorf("lease %s: %w; it may have expired, repeat the CNI ADD", id, ErrUnknownLease)
	case l.Owner != owner:
		return Lease{}, fmt.Errorf("lease %s: %w by %s", id, ErrInUse, l.Owner)
	}
	for _, a := range addrs {
		if !slices.Contains(l.Addrs(), a) {
			return Lease{}, fmt.Errorf("lease %s: %w: it holds %s, not %s", id, ErrConflict, join(l.Addrs()), a)
		}
	}
	return *l, nil
}
