package ipcache

import (
	"net/netip"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// tombsMax bounds how many removed owners are remembered.
const tombsMax = 4096

// tomb is an owner that was removed from a prefix. Events of an address that
// changes hands may come late: an owner that was removed and then upserted
// loses against one that was not.
type tomb struct {
	prefix   netip.Prefix
	resource string
}

type tombs struct {
	set   map[tomb]struct{}
	queue []tomb // oldest first
}

func (t *tombs) add(x tomb) {
	if _, ok := t.set[x]; ok {
		return
	}
	if t.set == nil {
		t.set = map[tomb]struct{}{}
	}
	if len(t.queue) == tombsMax {
		delete(t.set, t.queue[0])
		t.queue = t.queue[1:]
	}
	t.set[x] = struct{}{}
	t.queue = append(t.queue, x)
}

func (t *tombs) has(p netip.Prefix, resource string) bool {
	_, ok := t.set[tomb{p, resource}]
	return ok
}

// electOwner finds the winner among the owners of a prefix. c.mu is held.
func (c *IPCache) electOwner(p netip.Prefix) {
	var best owner
	found := false
	for resource, i := range c.metadata[p] {
		o := owner{resource, i}
		if !i.metadata.empty() && (!found || c.stronger(p, o, best)) {
			best, found = o, true
		}
	}
	old, had := c.owners.get(p)
	if had == found && (!found || old.resource == best.resource && old.source == best.source && old.metadata.equal(best.metadata)) {
		return
	}
	if found {
		c.owners.put(p, best)
	} else {
		c.owners.remove(p)
	}
	c.mark(p)
	if !p.IsSingleIP() {
		c.prefixes.under(p, func(q netip.Prefix, _ bool) { c.mark(q) })
	}
}

func (c *IPCache) stronger(p netip.Prefix, a, b owner) bool {
	if a.source != b.source {
		return a.source > b.source
	}
	if x, y := c.removed.has(p, a.resource), c.removed.has(p, b.resource); x != y {
		return y
	}
	return a.sequence > b.sequence
}

// prefixChanged marks what depends on a prefix of P after its change from
// matching pods or not (absent: not) to the other. c.mu is held.
func (c *IPCache) prefixChanged(p netip.Prefix, before, after bool) {
	c.mark(p)
	if before == after {
		return
	}
	if after {
		c.pods.put(p, struct{}{})
	} else {
		c.pods.remove(p)
	}
	markP := func(q netip.Prefix, _ bool) { c.mark(q) }
	c.owners.under(p, func(q netip.Prefix, _ owner) {
		c.mark(q)
		if !q.IsSingleIP() {
			c.prefixes.under(q, markP)
		}
	})
	if _, _, ok := c.owners.longest(p); ok {
		c.prefixes.under(p, markP)
	}
}

// mark asks the worker to look at a prefix. c.mu is held.
func (c *IPCache) mark(p netip.Prefix) {
	c.dirty[p] = struct{}{}
	c.changes++
	c.kick()
}

func (c *IPCache) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// want is what a prefix should resolve to. Label sets are nil where no number
// is needed.
type want struct {
	exists   bool
	own      bool                     // inside the cluster: it has an owner
	number   identity.NumericIdentity // a number that exists; else labels
	labels   labels.LabelArray
	prefix   labels.LabelArray // where, of an own address
	pod      labels.LabelArray // number to keep ready for pods inside this prefix
	source   Source
	resource string
}

// desire derives the wish for a prefix from the facts. c.mu is held.
func (c *IPCache) desire(p netip.Prefix) want {
	pods, inP := c.prefixes.get(p)
	q, o, owned := c.owners.longest(p)
	w := want{exists: inP || owned && q == p, own: owned, source: SourceGenerated}
	if !w.exists {
		return want{}
	}
	if pods && c.meetsPods(p) {
		w.pod = labels.NewLabelArray(labels.CIDRLabel(p))
	}
	if !owned {
		w.labels = labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr()))
		return w
	}
	w.number, w.labels, w.source, w.resource = o.metadata.Identity, o.metadata.Labels, o.source, o.resource
	if w.number != 0 {
		w.labels = nil
	}
	if b, _, ok := c.pods.longest(p); ok {
		w.prefix = labels.NewLabelArray(labels.CIDRLabel(b))
	}
	return w
}

func (c *IPCache) meetsPods(p netip.Prefix) bool {
	for _, q := range c.cfg.PodPrefixes {
		if q.Overlaps(p) {
			return true
		}
	}
	return false
}
