package ipcache

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// trie maps prefixes to values: a binary trie with compressed paths, one root
// per family. The zero value is empty. Prefixes must be canonical.
type trie[V any] struct {
	roots [2]*node[V]
	size  int
}

type node[V any] struct {
	prefix netip.Prefix
	key    key
	full   bool // holds a value, else only a fork
	value  V
	child  [2]*node[V]
}

// key is the address left-aligned in 128 bits.
type key struct{ hi, lo uint64 }

func keyOf(a netip.Addr) key {
	if a.Is4() {
		b := a.As4()
		return key{hi: uint64(binary.BigEndian.Uint32(b[:])) << 32}
	}
	b := a.As16()
	return key{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (k key) bit(i int) int {
	if i < 64 {
		return int(k.hi>>(63-i)) & 1
	}
	return int(k.lo>>(127-i)) & 1
}

// common counts the leading bits that two keys share.
func (k key) common(o key) int {
	if x := k.hi ^ o.hi; x != 0 {
		return bits.LeadingZeros64(x)
	}
	return 64 + bits.LeadingZeros64(k.lo^o.lo)
}

func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// put inserts or replaces.
func (t *trie[V]) put(p netip.Prefix, v V) {
	k := keyOf(p.Addr())
	at := &t.roots[family(p)]
	for {
		n := *at
		if n == nil {
			*at = &node[V]{prefix: p, key: k, full: true, value: v}
			t.size++
			return
		}
		c := min(k.common(n.key), p.Bits(), n.prefix.Bits())
		switch {
		case c == n.prefix.Bits() && c == p.Bits():
			if !n.full {
				t.size++
			}
			n.full, n.value = true, v
			return
		case c == n.prefix.Bits():
			at = &n.child[k.bit(c)]
		case c == p.Bits():
			*at = &node[V]{prefix: p, key: k, full: true, value: v}
			(*at).child[n.key.bit(c)] = n
			t.size++
			return
		default:
			fork := netip.PrefixFrom(p.Addr(), c).Masked()
			*at = &node[V]{prefix: fork, key: keyOf(fork.Addr())}
			(*at).child[n.key.bit(c)] = n
			at = &(*at).child[k.bit(c)]
		}
	}
}

// remove deletes a prefix; what is not there is no error.
func (t *trie[V]) remove(p netip.Prefix) {
	k := keyOf(p.Addr())
	var path []**node[V]
	at := &t.roots[family(p)]
	for *at != nil && (*at).prefix.Bits() < p.Bits() {
		path = append(path, at)
		at = &(*at).child[k.bit((*at).prefix.Bits())]
	}
	if *at == nil || (*at).prefix != p || !(*at).full {
		return
	}
	var none V
	(*at).full, (*at).value = false, none
	t.size--
	prune(at)
	if len(path) > 0 {
		prune(path[len(path)-1])
	}
}

// prune replaces a node without value and with at most one child by that child.
func prune[V any](at **node[V]) {
	n := *at
	if n.full || n.child[0] != nil && n.child[1] != nil {
		return
	}
	*at = n.child[0]
	if *at == nil {
		*at = n.child[1]
	}
}

// get returns the value of exactly this prefix.
func (t *trie[V]) get(p netip.Prefix) (v V, ok bool) {
	q, v, ok := t.longest(p)
	if !ok || q != p {
		var none V
		return none, false
	}
	return v, true
}

// longest returns the longest prefix that contains p, itself included.
func (t *trie[V]) longest(p netip.Prefix) (q netip.Prefix, v V, ok bool) {
	return t.longestIf(p, func(netip.Prefix, V) bool { return true })
}

// longestIf returns the longest prefix that contains p, itself included, of those
// that ok takes.
func (t *trie[V]) longestIf(p netip.Prefix, ok func(netip.Prefix, V) bool) (q netip.Prefix, v V, found bool) {
	k := keyOf(p.Addr())
	for n := t.roots[family(p)]; n != nil && n.prefix.Bits() <= p.Bits() && k.common(n.key) >= n.prefix.Bits(); {
		if n.full && ok(n.prefix, n.value) {
			q, v, found = n.prefix, n.value, true
		}
		if n.prefix.Bits() == p.Bits() {
			break
		}
		n = n.child[k.bit(n.prefix.Bits())]
	}
	return q, v, found
}

// under calls f for every prefix inside p, itself included, in order of address.
func (t *trie[V]) under(p netip.Prefix, f func(netip.Prefix, V)) {
	k := keyOf(p.Addr())
	n := t.roots[family(p)]
	for n != nil && n.prefix.Bits() < p.Bits() {
		n = n.child[k.bit(n.prefix.Bits())]
	}
	if n != nil && k.common(n.key) >= p.Bits() {
		n.walk(f)
	}
}

func (n *node[V]) walk(f func(netip.Prefix, V)) {
	if n.full {
		f(n.prefix, n.value)
	}
	for _, c := range n.child {
		if c != nil {
			c.walk(f)
		}
	}
}

// all calls f for every prefix, IPv4 first, in order of address.
func (t *trie[V]) all(f func(netip.Prefix, V)) {
	for _, n := range t.roots {
		if n != nil {
			n.walk(f)
		}
	}
}
