package pool

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// What an address can be refused for; errors.Is finds them.
var (
	ErrExhausted = errors.New("exhausted")
	ErrInUse     = errors.New("in use")
	ErrNotInPool = errors.New("not in pool")
)

// Pool is the state of one prefix. The zero value is not usable; see New.
type Pool struct {
	name    string
	prefix  netip.Prefix
	first   netip.Addr // first and last address that may be handed out
	last    netip.Addr
	gateway netip.Addr
	size    uint64 // addresses that may be handed out; saturated

	used  map[netip.Addr]string // owner
	next  netip.Addr            // where the search goes on
	freed map[netip.Addr]uint64 // given back since New, with the turn
	queue []freed               // the order of freed, oldest first; an entry of another turn is void
	turn  uint64                // counts addresses given back
	avoid map[netip.Addr]bool   // inside and not the gateway; not picked by Take
}

// freed is an address that was given back in a turn.
type freed struct {
	addr netip.Addr
	turn uint64
}

// New returns a pool without users. gateway may be outside the prefix but must
// be of its family; the zero Addr stands for the first address. The prefix must
// have room for one address beside the gateway.
func New(name string, prefix netip.Prefix, gateway netip.Addr) (*Pool, error) {
	if !prefix.IsValid() {
		return nil, fmt.Errorf("pool %s: the prefix is not valid", name)
	}
	if prefix != prefix.Masked() {
		return nil, fmt.Errorf("pool %s: %s has host bits set; write %s", name, prefix, prefix.Masked())
	}
	p := &Pool{name: name, prefix: prefix, first: prefix.Addr(), last: lastOf(prefix),
		used: map[netip.Addr]string{}, freed: map[netip.Addr]uint64{}}
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	if hostBits > 1 {
		p.first = p.first.Next()
		if prefix.Addr().Is4() {
			p.last = p.last.Prev()
		}
	}
	p.size = math.MaxUint64
	if hostBits < 64 {
		p.size = 1 << hostBits
	}
	if p.first != prefix.Addr() && hostBits < 64 {
		p.size--
	}
	if p.last != lastOf(prefix) {
		p.size--
	}
	p.gateway = gateway
	if !gateway.IsValid() {
		p.gateway = p.first
	}
	if p.gateway.Is4() != prefix.Addr().Is4() {
		return nil, fmt.Errorf("pool %s: the gateway %s is not of the family of %s", name, gateway, prefix)
	}
	if p.inside(p.gateway) {
		p.size--
	}
	if p.size == 0 {
		return nil, fmt.Errorf("pool %s: %s has no address beside the gateway %s; give a shorter prefix", name, prefix, p.gateway)
	}
	p.next = p.first
	return p, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (p *Pool) inside(a netip.Addr) bool {
	return a.BitLen() == p.first.BitLen() && a.Compare(p.first) >= 0 && a.Compare(p.last) <= 0
}

// Prefix returns the pool's prefix.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Gateway returns the address that the node answers for.
func (p *Pool) Gateway() netip.Addr { return p.gateway }

// Size returns how many addresses can be in use at once, and how many are. A
// size beyond 64 bits is 2^64-1 less the gateway.
func (p *Pool) Size() (used, size uint64) { return uint64(len(p.used)), p.size }

// Next returns where the search for a free address goes on; SetNext continues
// there after a restart. An address outside the pool is ignored.
func (p *Pool) Next() netip.Addr { return p.next }

// SetNext sets what Next returns.
func (p *Pool) SetNext(a netip.Addr) {
	if p.inside(a) {
		p.next = a
	}
}

// Take gives the owner the address that has been free for longest as far as the
// pool knows. It fails with ErrExhausted.
func (p *Pool) Take(owner string) (netip.Addr, error) {
	busy, kept := uint64(len(p.used)), uint64(0) // kept: given back, and avoided
	for a := range p.avoid {
		if _, used := p.used[a]; !used {
			busy++
		}
		if p.freed[a] != 0 {
			kept++
		}
	}
	if busy >= p.size {
		others := ""
		if n := busy - uint64(len(p.used)); n > 0 {
			others = fmt.Sprintf(", and %d belong to nodes", n)
		}
		return netip.Addr{}, fmt.Errorf("pool %s %w: %d of %d%s", p.name, ErrExhausted, len(p.used), p.size, others)
	}
	if busy+uint64(len(p.freed))-kept >= p.size {
		a := p.oldestFreed()
		p.use(a, owner)
		return a, nil
	}
	// Some address is neither in use nor given back nor avoided, so the search ends.
	for {
		a := p.next
		if p.next = a.Next(); a == p.last {
			p.next = p.first
		}
		if _, used := p.used[a]; !used && p.freed[a] == 0 && a != p.gateway && !p.avoid[a] {
			p.use(a, owner)
			return a, nil
		}
	}
}

// oldestFreed returns the address that was given back first and may be picked.
// There is one.
func (p *Pool) oldestFreed() netip.Addr {
	for p.void(p.queue[0]) {
		p.queue = p.queue[1:]
	}
	i := slices.IndexFunc(p.queue, func(f freed) bool { return !p.void(f) && !p.avoid[f.addr] })
	return p.queue[i].addr
}

// Avoid makes Take pass over these addresses, in place of those of the last call.
// Those outside the pool are ignored. TakeAddr still gives them.
func (p *Pool) Avoid(addrs []netip.Addr) {
	p.avoid = map[netip.Addr]bool{}
	for _, a := range addrs {
		if p.inside(a) && a != p.gateway {
			p.avoid[a] = true
		}
	}
}

func (p *Pool) void(f freed) bool { return p.freed[f.addr] != f.turn }

func (p *Pool) use(a netip.Addr, owner string) {
	p.used[a] = owner
	delete(p.freed, a)
}

// TakeAddr gives the owner this address. It fails with ErrNotInPool, which
// includes addresses that are never handed out, or ErrInUse, which names the
// owner.
func (p *Pool) TakeAddr(a netip.Addr, owner string) error {
	if !p.inside(a) || a == p.gateway {
		return fmt.Errorf("address %s %w %s (%s to %s without the gateway %s)", a, ErrNotInPool, p.name, p.first, p.last, p.gateway)
	}
	if other, ok := p.used[a]; ok {
		return fmt.Errorf("address %s %w by %s", a, ErrInUse, other)
	}
	p.use(a, owner)
	return nil
}

// Free gives an address back; false if nobody had it.
func (p *Pool) Free(a netip.Addr) bool {
	if _, ok := p.used[a]; !ok {
		return false
	}
	delete(p.used, a)
	p.turn++
	p.freed[a] = p.turn
	p.queue = append(p.queue, freed{a, p.turn})
	if len(p.queue) > 64 && len(p.queue) > 2*len(p.freed) {
		p.queue = slices.DeleteFunc(p.queue, p.void)
	}
	return true
}
