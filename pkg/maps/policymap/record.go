package policymap

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
)

const (
	anyProtocolBits = 40 // identity and direction count
	anyPortBits     = 48 // and the protocol
	exactPortBits   = 64 // and the whole port
)

// Key is one line of a policy map in host byte order.
type Key struct {
	Identity  uint32 // 0: any peer
	Direction uint8  // 0 ingress, 1 egress
	Stage     uint8  // 0: asked first; others by lines that pass, up to 127
	Protocol  uint8  // 0: every protocol, then Port and PortBits are 0
	Port      uint16 // the low 16-PortBits bits are 0
	PortBits  uint8  // leading bits of Port that count, 0 to 16
}

// Entry is what a line says.
type Entry struct {
	Order     uint64 // the bigger one decides between planes
	Rule      uint32
	ProxyPort uint16 // host byte order; 0: no redirect
	Deny      bool
	Pass      uint8  // not 0: the stage that decides instead; Deny is set too, for programs that know no stages
	Judged    uint64 // packets that the line decided or passed on; read only
}

// Line is a line of a policy map.
type Line struct {
	Key   Key
	Entry Entry
}

// key is struct policy_key.
type key struct {
	PrefixLen           uint32
	Identity            uint32
	Direction, Protocol uint8
	Port                [2]byte // big endian
}

// entry is struct policy_entry.
type entry struct {
	Order      uint64
	Rule       uint32
	ProxyPort  [2]byte // big endian
	Deny, Pass uint8
	Judged     uint64 // no part of the contents
}

// says reports whether two entries mean the same.
func (e entry) says(o entry) bool {
	e.Judged, o.Judged = 0, 0
	return e == o
}

// record is a line as the kernel holds it.
type record struct {
	key   key
	entry entry
}

// plane is the part of a map in which the longest match decides.
type plane struct {
	identity  uint32
	direction uint8 // with the stage
}

func (r record) plane() plane { return plane{r.key.Identity, r.key.Direction} }

// set makes a record of a line.
func (r *record) set(k *Key, e *Entry) error {
	*r = record{
		key:   key{Identity: k.Identity, Direction: k.Direction | k.Stage<<1, Protocol: k.Protocol},
		entry: entry{Order: e.Order, Rule: e.Rule, Pass: e.Pass},
	}
	binary.BigEndian.PutUint16(r.key.Port[:], k.Port)
	binary.BigEndian.PutUint16(r.entry.ProxyPort[:], e.ProxyPort)
	if e.Deny {
		r.entry.Deny = 1
	}
	switch {
	case k.Stage > 127, e.Pass != 0 && (e.Pass <= k.Stage || !e.Deny):
		return fmt.Errorf("policy line %+v: %+v is malformed; a line that passes denies too and names a later stage, of 127 at most", *k, *e)
	case k.PortBits > 16, k.Direction > 1, bits.TrailingZeros16(k.Port) < 16-int(k.PortBits):
		return fmt.Errorf("policy key %+v is malformed; a port has at most 16 bits that count and zeros after them", *k)
	case k.Protocol == 0 && k.PortBits > 0:
		return fmt.Errorf("policy key %+v names a port of no protocol; give the protocol", *k)
	case k.Protocol == 0:
		r.key.PrefixLen = anyProtocolBits
	default:
		r.key.PrefixLen = anyPortBits + uint32(k.PortBits)
	}
	return nil
}

func (r record) decode() (Key, Entry) {
	k := Key{
		Identity: r.key.Identity, Direction: r.key.Direction & 1, Stage: r.key.Direction >> 1, Protocol: r.key.Protocol,
		Port: binary.BigEndian.Uint16(r.key.Port[:]),
	}
	if r.key.PrefixLen > anyPortBits {
		k.PortBits = uint8(min(r.key.PrefixLen, exactPortBits) - anyPortBits)
	}
	return k, Entry{
		Order: r.entry.Order, Rule: r.entry.Rule,
		ProxyPort: binary.BigEndian.Uint16(r.entry.ProxyPort[:]), Deny: r.entry.Deny != 0, Pass: r.entry.Pass, Judged: r.entry.Judged,
	}
}

// packed is all of a key but its length, as a number.
func (k *key) packed() uint64 {
	return uint64(k.Identity)<<32 | uint64(k.Direction)<<24 | uint64(k.Protocol)<<16 | uint64(binary.BigEndian.Uint16(k.Port[:]))
}

func (k *key) compare(o *key) int {
	if c := cmp.Compare(k.packed(), o.packed()); c != 0 {
		return c
	}
	return cmp.Compare(k.PrefixLen, o.PrefixLen)
}

// compareKeys orders records for merging and hashing.
func compareKeys(a, b record) int { return a.key.compare(&b.key) }

// place is a record's key as a number and where the record is.
type place struct {
	packed uint64
	at     uint32
	length uint8
}

// sorted returns the records in the order of compareKeys. It goes byte by byte of
// the keys, the least first, which takes a large policy a fraction of the time of
// comparing; bytes that are the same everywhere, as most are, cost nothing.
func sorted(records []record) []record {
	places, other := make([]place, len(records)), make([]place, len(records))
	var differs uint64
	for i := range records {
		k := &records[i].key
		places[i] = place{k.packed(), uint32(i), uint8(k.PrefixLen)}
		differs |= places[i].packed ^ places[0].packed
	}
	for shift := 0; shift < 64; shift += 8 {
		if uint8(differs>>shift) != 0 {
			byDigit(places, other, shift)
			places, other = other, places
		}
	}
	out := make([]record, len(records))
	for i := range places {
		for j := i; j > 0 && places[j].packed == places[j-1].packed && places[j].length < places[j-1].length; j-- {
			places[j], places[j-1] = places[j-1], places[j] // of at most 18 that differ in the length alone
		}
	}
	for i := range places {
		out[i] = records[places[i].at]
	}
	return out
}

// byDigit puts from into to in the order of a byte; equal ones stay in order.
func byDigit(from, to []place, shift int) {
	var next [256]int // where the next one with the digit goes
	for i := range from {
		next[uint8(from[i].packed>>shift)]++
	}
	sum := 0
	for d, n := range next {
		next[d], sum = sum, sum+n
	}
	for i := range from {
		d := uint8(from[i].packed >> shift)
		to[next[d]] = from[i]
		next[d]++
	}
}

// encodeAll returns the records in the order of compareKeys.
func encodeAll(want []Line) ([]record, error) {
	all := make([]record, len(want))
	for i := range want {
		if err := all[i].set(&want[i].Key, &want[i].Entry); err != nil {
			return nil, err
		}
	}
	all = sorted(all)
	for i := 1; i < len(all); i++ {
		if all[i].key == all[i-1].key {
			k, _ := all[i].decode()
			return nil, fmt.Errorf("policy key %+v is there twice; give each key one entry", k)
		}
	}
	return all, nil
}

// hashSeed makes the hashes of two agents differ; none is kept.
var hashSeed = maphash.MakeSeed()

// hashOf says which contents may be equal; records are in the order of
// compareKeys. Whether they are is for same to say.
func hashOf(records []record) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	var b [128 * 32]byte
	for part := range slices.Chunk(records, len(b)/32) {
		for i := range part {
			k, e, at := &part[i].key, &part[i].entry, b[i*32:]
			proxy := uint64(binary.BigEndian.Uint16(e.ProxyPort[:]))
			binary.NativeEndian.PutUint64(at, k.packed())
			binary.NativeEndian.PutUint64(at[8:], e.Order)
			binary.NativeEndian.PutUint64(at[16:], uint64(k.PrefixLen)<<32|uint64(e.Rule))
			binary.NativeEndian.PutUint64(at[24:], proxy<<16|uint64(e.Deny)<<8|uint64(e.Pass))
		}
		h.Write(b[:len(part)*32])
	}
	return h.Sum64()
}

// same reports whether contents in the order of compareKeys are equal.
func same(a, b []record) bool {
	return slices.EqualFunc(a, b, func(x, y record) bool { return x.key == y.key && x.entry.says(y.entry) })
}

// delta is what turns one contents into another.
type delta struct {
	adds, deletes []record
	changes       int // keys that both have with different entries
}

// difference compares contents in the order of compareKeys.
func difference(old, want []record) delta {
	var d delta
	for len(old) > 0 && len(want) > 0 {
		switch c := old[0].key.compare(&want[0].key); {
		case c < 0:
			d.deletes, old = append(d.deletes, old[0]), old[1:]
		case c > 0:
			d.adds, want = append(d.adds, want[0]), want[1:]
		default:
			if !old[0].entry.says(want[0].entry) {
				d.changes++
			}
			old, want = old[1:], want[1:]
		}
	}
	d.deletes = append(d.deletes, old...)
	d.adds = append(d.adds, want...)
	return d
}

// fitsInPlace reports whether packets may be judged while the delta is being
// applied to a map that holds have records: see the rules of the package.
func (d delta) fitsInPlace(have int) bool {
	lines, left := len(d.adds)+len(d.deletes), have+len(d.adds)-len(d.deletes)
	if d.changes > 0 || have+len(d.adds) > MaxEntries || lines > maxDelta && (lines > left || !d.oneWay()) {
		return false
	}
	if len(d.deletes) == 0 {
		return true
	}
	grows := map[plane]bool{}
	for _, r := range d.adds {
		grows[r.plane()] = true
	}
	return !slices.ContainsFunc(d.deletes, func(r record) bool { return grows[r.plane()] })
}

// oneWay reports whether the delta only adds or only removes, and only lines that
// allow: no packet that both policies allow is denied on the way, however long it is.
func (d delta) oneWay() bool {
	denies := func(r record) bool { return r.entry.Deny != 0 }
	return (len(d.adds) == 0 || len(d.deletes) == 0) && !slices.ContainsFunc(d.adds, denies) && !slices.ContainsFunc(d.deletes, denies)
}

// sortForAdding puts later stages before the lines that pass to them, then denies
// first and, among equals, long prefixes first.
func sortForAdding(records []record) {
	slices.SortStableFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(b.key.Direction>>1, a.key.Direction>>1), cmp.Compare(b.entry.Deny, a.entry.Deny), cmp.Compare(b.key.PrefixLen, a.key.PrefixLen))
	})
}

// sortForDeleting is the reverse of sortForAdding.
func sortForDeleting(records []record) {
	slices.SortStableFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.key.Direction>>1, b.key.Direction>>1), cmp.Compare(a.entry.Deny, b.entry.Deny), cmp.Compare(a.key.PrefixLen, b.key.PrefixLen))
	})
}

// split separates records for a batch.
func split(records []record) ([]key, []entry) {
	keys, entries := make([]key, len(records)), make([]entry, len(records))
	for i, r := range records {
		keys[i], entries[i] = r.key, r.entry
	}
	return keys, entries
}
