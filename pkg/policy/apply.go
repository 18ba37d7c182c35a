package policy

import (
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Apply returns the Index after a batch, and what it means for those who use it.
// Selectors named in Select are not reported as changed.
func (x *Index) Apply(e Events) (*Index, Changes) {
	n := *x
	ch := Changes{Selectors: map[string]Delta{}, NamedPorts: map[types.NamedPort]bool{}}
	gone, came := n.applyIdentities(e)
	if len(gone)+len(came) > 0 {
		n.applyHosts(gone, came, ch.NamedPorts)
		n.applyMatches(gone, came, ch.Selectors)
	}
	n.applyPods(e, ch.NamedPorts)
	n.applySelections(e)
	ch.Prefixes = len(ch.NamedPorts) > 0 || n.toldApart(gone) || n.toldApart(came)
	return &n, ch
}

// toldApart reports whether pods of one of the identities are, or may be, told
// apart by their addresses.
func (x *Index) toldApart(ids map[identity.NumericIdentity]*known) bool {
	for id := range ids {
		if peer, ok := x.peers.Get(idKey(id)); ok {
			for _, n := range peer.names {
				if !n.agreed {
					return true
				}
			}
		}
	}
	return false
}

// applyIdentities changes what is known and returns what went and what came. An
// identity whose labels changed is in both.
func (x *Index) applyIdentities(e Events) (gone, came map[identity.NumericIdentity]*known) {
	gone = make(map[identity.NumericIdentity]*known, len(e.Removed))
	came = make(map[identity.NumericIdentity]*known, len(e.Added))
	all, terms := x.known.Txn(), x.terms.Txn()
	drop := func(id identity.NumericIdentity, k *known) {
		gone[id] = k
		for _, t := range k.terms(id) {
			terms.Delete(t)
		}
	}
	for id := range e.Removed {
		if k, was := all.Delete(idKey(id)); was {
			drop(id, k)
		}
	}
	for id, a := range e.Added {
		if old, was := all.Get(idKey(id)); was {
			if old.labels.Equal(a) {
				continue
			}
			drop(id, old)
		}
		k := &known{labels: a, world: a.HasWorld()}
		k.prefix, _ = a.Prefix()
		all.Insert(idKey(id), k)
		for _, t := range k.terms(id) {
			terms.Insert(t, id)
		}
		came[id] = k
	}
	x.known, x.terms = all.Commit(), terms.Commit()
	return gone, came
}

// applyHosts keeps the prefix identities of single pod addresses.
func (x *Index) applyHosts(gone, came map[identity.NumericIdentity]*known, names map[types.NamedPort]bool) {
	hosts := x.hosts.Txn()
	touch := func(k *known) (key []byte, ok bool) {
		if !k.prefix.IsValid() || k.world || !k.prefix.IsSingleIP() {
			return nil, false
		}
		key = addrKey(k.prefix.Addr())
		pod, _ := x.pods.Get(key)
		for name := range pod.NamedPorts {
			names[name] = true
		}
		return key, true
	}
	for id, k := range gone {
		if key, ok := touch(k); ok {
			if at, _ := hosts.Get(key); at == id {
				hosts.Delete(key)
			}
		}
	}
	for id, k := range came {
		if key, ok := touch(k); ok {
			hosts.Insert(key, id)
		}
	}
	x.hosts = hosts.Commit()
}

// applyMatches changes the matches of the selectors that identities which went
// and came had or have to do with, and of no other.
func (x *Index) applyMatches(gone, came map[identity.NumericIdentity]*known, out map[string]Delta) {
	selections := x.selections.Txn()
	touch := func(id identity.NumericIdentity, k *known, change func(s *selection, was bool, d *Delta)) {
		seen := map[string]bool{}
		x.eachWatcher(k, func(key string) {
			if seen[key] {
				return
			}
			seen[key] = true
			s, _ := x.selections.Get([]byte(key))
			_, was := slices.BinarySearch(s.ids, id)
			d := out[key]
			if change(s, was, &d); len(d.Added)+len(d.Removed) > 0 {
				out[key] = d
			}
		})
	}
	for id, k := range gone {
		touch(id, k, func(s *selection, was bool, d *Delta) {
			if k, again := came[id]; was && !(again && k.matches(s.peer)) {
				d.Removed = append(d.Removed, id)
			}
		})
	}
	for id, k := range came {
		touch(id, k, func(s *selection, was bool, d *Delta) {
			if !was && k.matches(s.peer) {
				d.Added = append(d.Added, id)
			}
		})
	}
	for key, d := range out {
		slices.Sort(d.Added)
		slices.Sort(d.Removed)
		s, _ := x.selections.Get([]byte(key))
		selections.Insert([]byte(key), s.apply(d))
	}
	x.selections = selections.Commit()
}

// apply merges a delta into the matches.
func (s *selection) apply(d Delta) *selection {
	ids := make([]identity.NumericIdentity, 0, len(s.ids)+len(d.Added)-len(d.Removed))
	add, drop := d.Added, d.Removed
	for _, id := range s.ids {
		for len(add) > 0 && add[0] < id {
			ids, add = append(ids, add[0]), add[1:]
		}
		if len(drop) > 0 && drop[0] == id {
			drop = drop[1:]
			continue
		}
		ids = append(ids, id)
	}
	return &selection{peer: s.peer, ids: append(ids, add...), uses: s.uses}
}

func (x *Index) applySelections(e Events) {
	if len(e.Select)+len(e.Unselect) == 0 {
		return
	}
	selections, watchers := x.selections.Txn(), x.watchers.Txn()
	use := func(key string, s *selection, more int) {
		selections.Insert([]byte(key), &selection{peer: s.peer, ids: s.ids, uses: s.uses + more})
	}
	for _, p := range e.Select {
		if IsWildcard(p) {
			continue
		}
		key := PeerKey(p)
		if s, ok := selections.Get([]byte(key)); ok {
			use(key, s, 1)
			continue
		}
		use(key, &selection{peer: p, ids: x.found(p)}, 1)
		for _, term := range anchors(p) {
			watchers.Insert(append(term, key...), key)
		}
	}
	for _, p := range e.Unselect {
		key := PeerKey(p)
		switch s, ok := selections.Get([]byte(key)); {
		case !ok:
		case s.uses > 1:
			use(key, s, -1)
		default:
			selections.Delete([]byte(key))
			for _, term := range anchors(p) {
				watchers.Delete(append(term, key...))
			}
		}
	}
	x.selections, x.watchers = selections.Commit(), watchers.Commit()
}
