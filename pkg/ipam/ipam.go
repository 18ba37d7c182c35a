package ipam

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/ipam/pool"
)

// Errors that callers tell apart with errors.Is. The texts around them name the
// pool, the address, the owner.
var (
	ErrExhausted    = pool.ErrExhausted
	ErrInUse        = pool.ErrInUse
	ErrNotInPool    = pool.ErrNotInPool
	ErrUnknownPool  = errors.New("unknown pool")
	ErrUnknownLease = errors.New("no such lease")
	ErrConflict     = errors.New("the owner has another lease")
)

// Defaults of Config.
const (
	DefaultPool       = "default"
	DefaultExpiration = 10 * time.Minute
	expireEvery       = 30 * time.Second // of Run
)

// PoolConfig is a pool of one or both families. An invalid prefix: the pool has
// no addresses of that family. An invalid gateway: the first address.
type PoolConfig struct {
	V4, V6             netip.Prefix
	Gateway4, Gateway6 netip.Addr
}

// Config of an IPAM. Pools is required.
type Config struct {
	Logger     *slog.Logger
	StateDir   string // of leases.json; empty: leases do not survive a restart
	Pools      map[string]PoolConfig
	Default    string           // pool of requests that name none; empty: DefaultPool
	Expiration time.Duration    // of leases that are not confirmed; 0: DefaultExpiration
	Now        func() time.Time // nil: time.Now
	// Foreign are the addresses that are no pod's to have, with whose they are, as
	// things stand: those of nodes. It is asked for every lease. Nil: none.
	Foreign func() map[netip.Addr]string
}

// Request asks for addresses.
type Request struct {
	Owner      string // container:interface; not empty
	Pod        string // namespace/name for people; may be empty
	Pool       string // empty: the default pool
	IPv4, IPv6 bool   // families wanted; neither: all that the pool has
	Requested  []netip.Addr
	Expiration bool // the lease goes unless Confirm is called in time
}

// Lease is what an owner has. Addresses of a family not leased are invalid.
type Lease struct {
	ID                 string
	Owner, Pod, Pool   string
	IPv4, IPv6         netip.Addr
	Gateway4, Gateway6 netip.Addr
	Expires            time.Time // zero: does not
}

// Addrs returns the leased addresses.
func (l Lease) Addrs() []netip.Addr {
	var out []netip.Addr
	for _, a := range []netip.Addr{l.IPv4, l.IPv6} {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// PoolStatus tells how full a pool is.
type PoolStatus struct {
	Name         string
	V4, V6       netip.Prefix
	Used4, Size4 uint64
	Used6, Size6 uint64 // sizes beyond 64 bits are saturated
}

// IPAM keeps the leases. Its methods may be called from any goroutine.
type IPAM struct {
	log    *slog.Logger
	file   *file // nil: no state directory
	expiry time.Duration
	now    func() time.Time
	def    string
	others func() map[netip.Addr]string

	mu      sync.Mutex // guards all below
	pools   map[string]*pair
	leases  map[string]*Lease // by id
	byOwner map[string]*Lease
	byAddr  map[netip.Addr]*Lease
}

// pair holds the pools of both families; nil: none of that family.
type pair struct{ v4, v6 *pool.Pool }

func (p *pair) of(v6 bool) *pool.Pool {
	if v6 {
		return p.v6
	}
	return p.v4
}

// New reads the leases of before. It fails for pools that are not usable or
// overlap, and for a state directory that cannot be made.
func New(cfg Config) (*IPAM, error) {
	m := &IPAM{log: cfg.Logger, expiry: cmp.Or(cfg.Expiration, DefaultExpiration), now: cfg.Now, def: cmp.Or(cfg.Default, DefaultPool), others: cfg.Foreign,
		pools: map[string]*pair{}, leases: map[string]*Lease{}, byOwner: map[string]*Lease{}, byAddr: map[netip.Addr]*Lease{}}
	if m.now == nil {
		m.now = time.Now
	}
	if m.others == nil {
		m.others = func() map[netip.Addr]string { return nil }
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	seen := map[netip.Prefix]string{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Pools)) {
		p, err := newPair(name, cfg.Pools[name], seen)
		if err != nil {
			return nil, err
		}
		m.pools[name] = p
	}
	if m.pools[m.def] == nil {
		return nil, fmt.Errorf("the default pool %s is not configured; configured pools: %s", m.def, m.poolNames())
	}
	if cfg.StateDir == "" {
		return m, nil
	}
	m.file = &file{path: filepath.Join(cfg.StateDir, FileName), write: replace}
	return m, m.load()
}

func newPair(name string, c PoolConfig, seen map[netip.Prefix]string) (*pair, error) {
	p := &pair{}
	for _, f := range []struct {
		prefix  netip.Prefix
		gateway netip.Addr
		v6      bool
		into    **pool.Pool
	}{{c.V4, c.Gateway4, false, &p.v4}, {c.V6, c.Gateway6, true, &p.v6}} {
		if !f.prefix.IsValid() {
			continue
		}
		if f.prefix.Addr().Is6() != f.v6 {
			return nil, fmt.Errorf("pool %s: %s is of the wrong family", name, f.prefix)
		}
		for other, owner := range seen {
			if other.Overlaps(f.prefix) {
				return nil, fmt.Errorf("pool %s: %s overlaps %s of pool %s", name, f.prefix, other, owner)
			}
		}
		seen[f.prefix] = name
		made, err := pool.New(name, f.prefix, f.gateway)
		if err != nil {
			return nil, err
		}
		*f.into = made
	}
	if p.v4 == nil && p.v6 == nil {
		return nil, fmt.Errorf("pool %s has no prefix; give it an IPv4 or IPv6 prefix", name)
	}
	return p, nil
}

// Allocate leases an address of each family asked for, all or none. An owner
// that has a lease which answers the request gets it again, with a new term if
// it was not confirmed. Errors: ErrUnknownPool, ErrExhausted, ErrInUse,
// ErrNotInPool, ErrConflict, a file that cannot be written.
func (m *IPAM) Allocate(_ context.Context, r Request) (Lease, error) {
	if r.Owner == "" {
		return Lease{}, errors.New("lease addresses: the owner is empty")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	return m.allocate(r)
}

// allocate is Allocate. m.mu is held.
func (m *IPAM) allocate(r Request) (Lease, error) {
	want, err := m.plan(r)
	if err != nil {
		return Lease{}, fmt.Errorf("lease addresses for %s: %w", r.Owner, err)
	}
	if old := m.byOwner[r.Owner]; old != nil {
		return m.again(old, want, r)
	}
	l := &Lease{ID: rand.Text(), Owner: r.Owner, Pod: r.Pod, Pool: want.name}
	if err := m.avoid(want); err != nil {
		return Lease{}, fmt.Errorf("lease addresses for %s: %w", r.Owner, err)
	}
	if err := m.take(l, want); err != nil {
		return Lease{}, fmt.Errorf("lease addresses for %s: %w", r.Owner, err)
	}
	if r.Expiration {
		l.Expires = m.now().Add(m.expiry)
	}
	m.insert(l)
	if err := m.save(); err != nil {
		m.drop(l)
		return Lease{}, fmt.Errorf("lease addresses for %s: %w", r.Owner, err)
	}
	return *l, nil
}

// plan is a request resolved: per family, whether wanted and which address.
type plan struct {
	name    string
	pair    *pair
	want    [2]bool       // v4, v6
	request [2]netip.Addr // invalid: any
}

func (m *IPAM) plan(r Request) (plan, error) {
	p := plan{name: cmp.Or(r.Pool, m.def), want: [2]bool{r.IPv4, r.IPv6}}
	p.pair = m.pools[p.name]
	if p.pair == nil {
		return p, fmt.Errorf("%w %s; configured pools: %s", ErrUnknownPool, p.name, m.poolNames())
	}
	if !r.IPv4 && !r.IPv6 {
		p.want = [2]bool{p.pair.v4 != nil, p.pair.v6 != nil}
	}
	for _, a := range r.Requested {
		f := 0
		if a = a.Unmap(); a.Is6() {
			f = 1
		}
		if p.request[f].IsValid() && p.request[f] != a {
			return p, fmt.Errorf("two addresses of one family requested: %s and %s; ask for one", p.request[f], a)
		}
		if p.pair.of(f == 1) == nil {
			return p, fmt.Errorf("address %s %w %s: it has no prefix of that family", a, ErrNotInPool, p.name)
		}
		p.want[f], p.request[f] = true, a
	}
	for f, name := range []string{"IPv4", "IPv6"} {
		if p.want[f] && p.pair.of(f == 1) == nil {
			return p, fmt.Errorf("pool %s has no %s prefix; configure one or do not ask for %s", p.name, name, name)
		}
	}
	return p, nil
}

// avoid keeps what belongs to others out of a new lease.
func (m *IPAM) avoid(p plan) error {
	others := m.others()
	for f, a := range p.request {
		if whose := others[a]; a.IsValid() && whose != "" && a != p.pair.of(f == 1).Gateway() {
			return fmt.Errorf("address %s %w by %s", a, ErrInUse, whose)
		}
	}
	addrs := slices.Collect(maps.Keys(others))
	for f := range p.want {
		if pool := p.pair.of(f == 1); pool != nil {
			pool.Avoid(addrs)
		}
	}
	return nil
}

// Conflicts returns the leased addresses that belong to others by now, with whose
// they are.
func (m *IPAM) Conflicts() map[netip.Addr]string {
	others := m.others()
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(others, func(a netip.Addr, _ string) bool { return m.byAddr[a] == nil })
	return others
}

// take fills in the addresses, or takes none.
func (m *IPAM) take(l *Lease, p plan) error {
	for f, into := range []*netip.Addr{&l.IPv4, &l.IPv6} {
		if !p.want[f] {
			continue
		}
		addrs := p.pair.of(f == 1)
		a, err := p.request[f], error(nil)
		if a.IsValid() {
			err = addrs.TakeAddr(a, l.Owner)
		} else {
			a, err = addrs.Take(l.Owner)
		}
		if err != nil {
			if f == 1 && l.IPv4.IsValid() {
				p.pair.v4.Free(l.IPv4)
			}
			return err
		}
		*into = a
	}
	m.gateways(l)
	return nil
}

func (m *IPAM) gateways(l *Lease) {
	p := m.pools[l.Pool]
	l.Gateway4, l.Gateway6 = netip.Addr{}, netip.Addr{}
	if p != nil && p.v4 != nil && l.IPv4.IsValid() {
		l.Gateway4 = p.v4.Gateway()
	}
	if p != nil && p.v6 != nil && l.IPv6.IsValid() {
		l.Gateway6 = p.v6.Gateway()
	}
}

// again answers an owner that has a lease.
func (m *IPAM) again(old *Lease, p plan, r Request) (Lease, error) {
	same := old.Pool == p.name
	for f, a := range []netip.Addr{old.IPv4, old.IPv6} {
		same = same && a.IsValid() == p.want[f] && (!p.request[f].IsValid() || p.request[f] == a)
	}
	if !same {
		return Lease{}, fmt.Errorf("lease addresses for %s: %w: %s of pool %s; release it first", r.Owner, ErrConflict, join(old.Addrs()), old.Pool)
	}
	if old.Expires.IsZero() {
		return *old, nil
	}
	before := old.Expires
	if old.Expires = m.now().Add(m.expiry); !r.Expiration {
		old.Expires = time.Time{}
	}
	if err := m.save(); err != nil {
		old.Expires = before
		return Lease{}, fmt.Errorf("lease addresses for %s: %w", r.Owner, err)
	}
	return *old, nil
}

// Confirm ends the term of a lease: an endpoint uses its addresses. It fails
// with ErrUnknownLease if the lease was released or has expired.
func (m *IPAM) Confirm(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire()
	l := m.leases[id]
	if l == nil {
		return fmt.Errorf("confirm lease %s: %w; it may have expired, repeat the CNI ADD", id, ErrUnknownLease)
	}
	if l.Expires.IsZero() {
		return nil
	}
	before := l.Expires
	l.Expires = time.Time{}
	if err := m.save(); err != nil {
		l.Expires = before
		return fmt.Errorf("confirm lease %s: %w", id, err)
	}
	return nil
}

// Release gives back the lease that holds an address, with both families; false
// if none does. With an id it is kept when the address belongs to another lease.
func (m *IPAM) Release(addr netip.Addr, id string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.byAddr[addr.Unmap()]
	if l == nil || id != "" && l.ID != id {
		return false, nil
	}
	return true, m.release(l)
}

// ReleaseOwner gives back an owner's lease; false if it has none.
func (m *IPAM) ReleaseOwner(owner string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.byOwner[owner]
	if l == nil {
		return false, nil
	}
	return true, m.release(l)
}

// release keeps the lease gone even if the file cannot be written: after a
// restart it would come back, and go when its owner is known to be gone.
func (m *IPAM) release(l *Lease) error {
	m.drop(l)
	if err := m.save(); err != nil {
		return fmt.Errorf("release %s: %w", join(l.Addrs()), err)
	}
	return nil
}

// Restore makes sure that an owner which was there before the restart has these
// addresses, one of each family at the most, and confirms its lease. Where the
// file has no lease for it one is made, in the pool that holds the addresses.
// Errors: ErrInUse names the other owner, ErrNotInPool.
func (m *IPAM) Restore(owner, pod string, addrs ...netip.Addr) (Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
		if l := m.byAddr[addrs[i]]; l != nil && l.Owner != owner {
			return Lease{}, fmt.Errorf("restore %s of %s: %w by %s", addrs[i], owner, ErrInUse, l.Owner)
		}
	}
	if l := m.byOwner[owner]; l != nil && sameAddrs(l.Addrs(), addrs) {
		l.Expires = time.Time{}
		return *l, m.save()
	} else if l != nil {
		m.drop(l) // the endpoint's record is the younger one
	}
	if len(addrs) == 0 {
		return Lease{}, fmt.Errorf("restore %s: no addresses", owner)
	}
	name := m.poolOf(addrs[0])
	p, err := m.plan(Request{Owner: owner, Pool: name, Requested: addrs, IPv4: addrs[0].Is4(), IPv6: addrs[0].Is6()})
	if name == "" {
		err = fmt.Errorf("address %s %w %s", addrs[0], ErrNotInPool, m.poolNames())
	}
	l := &Lease{ID: rand.Text(), Owner: owner, Pod: pod, Pool: name}
	if err == nil {
		err = m.take(l, p)
	}
	if err != nil {
		return Lease{}, errors.Join(fmt.Errorf("restore %s of %s: %w", join(addrs), owner, err), m.save())
	}
	m.insert(l)
	return *l, m.save()
}

// Expire gives back the leases whose term is over and returns them.
func (m *IPAM) Expire() ([]Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.expire()
	if len(gone) == 0 {
		return nil, nil
	}
	return gone, m.save()
}

// expire is Expire without the file: what comes back after a restart expires again.
func (m *IPAM) expire() []Lease {
	var gone []Lease
	now := m.now()
	for _, l := range m.leases {
		if !l.Expires.IsZero() && !now.Before(l.Expires) {
			gone = append(gone, *l)
		}
	}
	slices.SortFunc(gone, func(a, b Lease) int { return a.Expires.Compare(b.Expires) })
	for _, l := range gone {
		m.drop(m.leases[l.ID])
		m.log.Warn("Lease of an ADD that never finished has expired", "owner", l.Owner, "pod", l.Pod, "addresses", join(l.Addrs()))
	}
	return gone
}

// Run expires leases until ctx ends.
func (m *IPAM) Run(ctx context.Context) error {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := m.Expire(); err != nil {
				m.log.Warn("Expired leases are still in the file", "error", err)
			}
		}
	}
}

// Leases returns all leases, by owner.
func (m *IPAM) Leases() []Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Lease, 0, len(m.leases))
	for _, l := range m.leases {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b Lease) int { return strings.Compare(a.Owner, b.Owner) })
	return out
}

// Pools returns the state of all pools, by name.
func (m *IPAM) Pools() []PoolStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []PoolStatus
	for _, name := range slices.Sorted(maps.Keys(m.pools)) {
		s, p := PoolStatus{Name: name}, m.pools[name]
		if p.v4 != nil {
			s.V4 = p.v4.Prefix()
			s.Used4, s.Size4 = p.v4.Size()
		}
		if p.v6 != nil {
			s.V6 = p.v6.Prefix()
			s.Used6, s.Size6 = p.v6.Size()
		}
		out = append(out, s)
	}
	return out
}

// insert adds a lease whose addresses are taken. m.mu is held.
func (m *IPAM) insert(l *Lease) {
	m.leases[l.ID], m.byOwner[l.Owner] = l, l
	for _, a := range l.Addrs() {
		m.byAddr[a] = l
	}
}

// drop removes a lease and frees its addresses. m.mu is held.
func (m *IPAM) drop(l *Lease) {
	delete(m.leases, l.ID)
	delete(m.byOwner, l.Owner)
	for _, a := range l.Addrs() {
		delete(m.byAddr, a)
		if p := m.pools[l.Pool]; p != nil {
			if addrs := p.of(a.Is6()); addrs != nil {
				addrs.Free(a)
			}
		}
	}
}

func (m *IPAM) poolOf(a netip.Addr) string {
	for name, p := range m.pools {
		if addrs := p.of(a.Is6()); addrs != nil && addrs.Prefix().Contains(a) {
			return name
		}
	}
	return ""
}

func (m *IPAM) poolNames() string { return strings.Join(slices.Sorted(maps.Keys(m.pools)), ", ") }

func sameAddrs(a, b []netip.Addr) bool {
	a, b = slices.SortedFunc(slices.Values(a), netip.Addr.Compare), slices.SortedFunc(slices.Values(b), netip.Addr.Compare)
	return slices.Equal(a, b)
}

func join(as []netip.Addr) string {
	out := make([]string, len(as))
	for i, a := range as {
		out[i] = a.String()
	}
	return strings.Join(out, " and ")
}
