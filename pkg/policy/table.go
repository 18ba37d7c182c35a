package policy

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/cilium/statedb/part"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// tables are what an Index knows, each sorted by the bytes of its keys. They are
// persistent: a copy is free, and a change of it costs the path to what changed.
type tables struct {
	known      part.Tree[*known]                   // by number
	terms      part.Tree[identity.NumericIdentity] // by what the identity has, see terms
	selections part.Tree[*selection]               // by PeerKey
	watchers   part.Tree[string]                   // PeerKey by what it demands at least, see anchors
	pods       part.Tree[podAt]                    // by address
	named      part.Tree[podAt]                    // by port name and address, those that give it
	peers      part.Tree[*portPeer]                // by number of the pods' identity
	hosts      part.Tree[identity.NumericIdentity] // prefix identities of single pod addresses, by address
}

// podAt is a pod and where it is.
type podAt struct {
	addr netip.Addr
	Pod
}

func newTables() tables {
	return tables{part.New[*known](part.RootOnlyWatch), part.New[identity.NumericIdentity](part.RootOnlyWatch),
		part.New[*selection](part.RootOnlyWatch), part.New[string](part.RootOnlyWatch), part.New[podAt](part.RootOnlyWatch),
		part.New[podAt](part.RootOnlyWatch), part.New[*portPeer](part.RootOnlyWatch), part.New[identity.NumericIdentity](part.RootOnlyWatch)}
}

func idKey(id identity.NumericIdentity) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(id))
}

// addrKey sorts the addresses of a family as numbers.
func addrKey(a netip.Addr) []byte { return append([]byte{byte(a.BitLen())}, a.AsSlice()...) }

// nameKey is what all keys of a port name in the table named start with, and no
// other key.
func nameKey(n types.NamedPort) []byte {
	key := binary.BigEndian.AppendUint32(nil, uint32(len(n.Name)))
	return append(append(key, n.Name...), byte(n.Proto))
}

// inBlock calls emit with everything whose key is start and an address inside
// the prefix, whatever follows.
func inBlock[V any](t *part.Tree[V], start []byte, p netip.Prefix, emit func(V)) {
	if p = labels.CanonicalPrefix(p); !p.IsValid() {
		return
	}
	for key, v := range t.LowerBound(append(bytes.Clone(start), addrKey(p.Addr())...)).All {
		rest, ok := bytes.CutPrefix(key, start)
		if size := 1 + p.Addr().BitLen()/8; !ok || len(rest) < size || rest[0] != byte(p.Addr().BitLen()) {
			return
		} else if a, _ := netip.AddrFromSlice(rest[1:size]); !p.Contains(a) {
			return
		}
		emit(v)
	}
}

// Starts of terms. A selector demands a label with a value, a label with any
// value, an address inside a block, or nothing of them.
const (
	termValue, termKey, termBlock, termNone = "=", "?", "/", "*"
)

func valueTerm(key, value string) []byte { return []byte(termValue + key + "\x00" + value + "\x00") }
func keyTerm(key string) []byte          { return []byte(termKey + key + "\x00") }

func blockTerm(p netip.Prefix) []byte {
	return append(append([]byte(termBlock), addrKey(p.Addr())...), byte(p.Bits()))
}

// terms are what an identity is found by, its number behind them: every label
// with its value, and the prefix.
func (k *known) terms(id identity.NumericIdentity) [][]byte {
	out := make([][]byte, 0, len(k.labels)+1)
	for _, l := range k.labels {
		out = append(out, append(valueTerm(l.Key, l.Value), idKey(id)...))
	}
	if k.prefix.IsValid() {
		out = append(out, append(blockTerm(k.prefix), idKey(id)...))
	}
	return out
}

// anchors are terms of which an identity has at least one if the peer selects
// it, as few and rare ones as can be told from the peer. None: it selects nobody.
func anchors(p types.Peer) [][]byte {
	switch {
	case p.CIDR != nil:
		if prefix := labels.CanonicalPrefix(p.CIDR.Prefix); prefix.IsValid() {
			return [][]byte{blockTerm(prefix)}
		}
		return nil
	case p.Labels == nil:
		return nil
	}
	const worst = 1 << 30
	best, cost := [][]byte{[]byte(termNone)}, worst
	for _, r := range p.Labels.Requirements() {
		switch c := commonness(r.Key); {
		case r.Operator == labels.In && c+len(r.Values) < cost:
			best, cost = nil, c+len(r.Values)
			for _, v := range r.Values {
				best = append(best, valueTerm(r.Key, v))
			}
		case r.Operator == labels.Exists && 3*c+1000 < cost:
			best, cost = [][]byte{keyTerm(r.Key)}, 3*c+1000
		}
	}
	return best
}

// commonness says roughly how many identities have the same value of a label.
func commonness(key string) int {
	switch {
	case key == labels.KeyCluster:
		return 10_000
	case key == labels.KeyPodNamespace, key == labels.KeyServiceAccount, strings.HasPrefix(key, labels.KeyNamespaceLabels):
		return 100
	}
	return 0
}

// scan finds the matches of a selector that nobody asked to keep; it may find
// one more than once.
func (x *Index) scan(p types.Peer, emit func(identity.NumericIdentity)) {
	test := func(id identity.NumericIdentity) {
		if x.get(id).matches(p) {
			emit(id)
		}
	}
	if lists := x.demanded(p); len(lists) > 1 {
		for _, id := range shortest(lists) {
			test(id)
		}
		return
	}
	for _, term := range anchors(p) {
		switch string(term[:1]) {
		case termBlock:
			inBlock(&x.terms, []byte(termBlock), p.CIDR.Prefix, test)
		case termNone:
			for key := range x.known.All {
				test(identity.NumericIdentity(binary.BigEndian.Uint32(key)))
			}
		default:
			for _, id := range x.terms.Prefix(append([]byte(termValue), term[1:]...)).All {
				test(id)
			}
		}
	}
}

// demanded lists, for each label with one value that a peer demands, the
// identities that have it.
func (x *Index) demanded(p types.Peer) (out []part.Iterator[identity.NumericIdentity]) {
	if p.Labels == nil {
		return nil
	}
	for _, r := range p.Labels.Requirements() {
		if r.Operator == labels.In && len(r.Values) == 1 {
			out = append(out, x.terms.Prefix(valueTerm(r.Key, r.Values[0])))
		}
	}
	return out
}

// shortest returns the shortest of the lists. It goes through all of them side by
// side, so that long ones cost no more than the short one: which label is rare
// differs from cluster to cluster.
func shortest(lists []part.Iterator[identity.NumericIdentity]) []identity.NumericIdentity {
	read := make([][]identity.NumericIdentity, len(lists))
	for {
		for i := range lists {
			_, id, more := lists[i].Next()
			if !more {
				return read[i]
			}
			read[i] = append(read[i], id)
		}
	}
}

// eachWatcher calls emit with the keys of all kept selectors that may select the
// identity, and of some that do not; it may name one more than once.
func (x *Index) eachWatcher(k *known, emit func(string)) {
	at := func(term []byte) {
		for _, key := range x.watchers.Prefix(term).All {
			emit(key)
		}
	}
	for _, l := range k.labels {
		at(valueTerm(l.Key, l.Value))
		at(keyTerm(l.Key))
	}
	at([]byte(termNone))
	if !k.prefix.IsValid() {
		return
	}
	for bits := range k.prefix.Bits() + 1 {
		p, _ := k.prefix.Addr().Prefix(bits)
		at(blockTerm(p))
	}
}
