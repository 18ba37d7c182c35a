package policy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Apply returns the Index after a batch, and what it means for those who use it.
// Selectors named in Select are not reported as changed.
func (x *Index) Apply(e Events) (*Index, Changes) {
	n := x.clone(e)
	ch := Changes{Selectors: map[string]Delta{}, NamedPorts: map[types.NamedPort]bool{}}
	gone, came := n.applyIdentities(e)
	if len(gone)+len(came) > 0 {
		n.applyHosts(gone, came, ch.NamedPorts)
		for key, s := range n.selections {
			if d := s.delta(gone, came); len(d.Added)+len(d.Removed) > 0 {
				n.selections[key] = s.apply(d)
				ch.Selectors[key] = d
			}
		}
	}
	n.applyPods(e, ch.NamedPorts)
	n.applySelections(e)
	return n, ch
}

// applyIdentities changes the shards and returns what went and what came. An
// identity whose labels changed is in both.
func (x *Index) applyIdentities(e Events) (gone, came map[identity.NumericIdentity]*known) {
	gone = make(map[identity.NumericIdentity]*known, len(e.Removed))
	came = make(map[identity.NumericIdentity]*known, len(e.Added))
	owned := [256]bool{}
	own := func(id identity.NumericIdentity) map[identity.NumericIdentity]*known {
		i := byte(id)
		if !owned[i] {
			owned[i] = true
			if x.shards[i] = maps.Clone(x.shards[i]); x.shards[i] == nil {
				x.shards[i] = make(map[identity.NumericIdentity]*known, 1+len(e.Added)/256)
			}
		}
		return x.shards[i]
	}
	for id := range e.Removed {
		if k := x.get(id); k != nil {
			delete(own(id), id)
			gone[id] = k
			x.count--
		}
	}
	for id, a := range e.Added {
		old := x.get(id)
		if old != nil {
			if old.labels.Equal(a) {
				continue
			}
			gone[id] = old
			x.count--
		}
		k := &known{labels: a, world: a.HasWorld()}
		k.prefix, _ = a.Prefix()
		own(id)[id] = k
		came[id] = k
		x.count++
	}
	return gone, came
}

// applyHosts keeps the prefix identities of single pod addresses.
func (x *Index) applyHosts(gone, came map[identity.NumericIdentity]*known, names map[types.NamedPort]bool) {
	cloned := false
	touch := func(k *known, change func(netip.Addr)) {
		if !k.prefix.IsValid() || k.world || !k.prefix.IsSingleIP() {
			return
		}
		if !cloned {
			cloned = true
			if x.hosts = maps.Clone(x.hosts); x.hosts == nil {
				x.hosts = map[netip.Addr]identity.NumericIdentity{}
			}
		}
		change(k.prefix.Addr())
		for name := range x.pods[k.prefix.Addr()].NamedPorts {
			names[name] = true
		}
	}
	for id, k := range gone {
		touch(k, func(a netip.Addr) {
			if x.hosts[a] == id {
				delete(x.hosts, a)
			}
		})
	}
	for id, k := range came {
		touch(k, func(a netip.Addr) { x.hosts[a] = id })
	}
}

// delta says how identities that went and came change the matches.
func (s *selection) delta(gone, came map[identity.NumericIdentity]*known) Delta {
	var d Delta
	for id, k := range came {
		_, was := slices.BinarySearch(s.ids, id)
		is := k.matches(s.peer)
		switch {
		case is && !was:
			d.Added = append(d.Added, id)
		case was && !is:
			d.Removed = append(d.Removed, id)
		}
	}
	for id := range gone {
		if _, again := came[id]; again {
			continue
		}
		if _, was := slices.BinarySearch(s.ids, id); was {
			d.Removed = append(d.Removed, id)
		}
	}
	slices.Sort(d.Added)
	slices.Sort(d.Removed)
	return d
}

func (s *selection) apply(d Delta) *selection {
	ids := make([]identity.NumericIdentity, 0, len(s.ids)+len(d.Added))
	for _, id := range s.ids {
		if _, out := slices.BinarySearch(d.Removed, id); !out {
			ids = append(ids, id)
		}
	}
	ids = append(ids, d.Added...)
	slices.Sort(ids)
	return &selection{peer: s.peer, ids: ids, uses: s.uses}
}

func (x *Index) applySelections(e Events) {
	for _, p := range e.Select {
		if IsWildcard(p) {
			continue
		}
		key := PeerKey(p)
		if s := x.selections[key]; s != nil {
			x.selections[key] = &selection{peer: s.peer, ids: s.ids, uses: s.uses + 1}
			continue
		}
		x.selections[key] = &selection{peer: p, ids: x.scan(p), uses: 1}
	}
	for _, p := range e.Unselect {
		key := PeerKey(p)
		s := x.selections[key]
		if s == nil {
			continue
		}
		if s.uses == 1 {
			delete(x.selections, key)
			continue
		}
		x.selections[key] = &selection{peer: s.peer, ids: s.ids, uses: s.uses - 1}
	}
}
