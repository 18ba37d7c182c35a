package ipcache

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

// reservedPlaces are kept free in the kernel's map: one of each family for the
// prefix that contains all others, so that it can be closed at any time.
const reservedPlaces = 2

// closed is what the data plane denies whatever the policy says.
var closed = ipcachemap.Entry{Identity: uint32(identity.ReservedClosed), PrefixIdentity: uint32(identity.ReservedClosed)}

// put is an entry to be written.
type put struct {
	prefix netip.Prefix
	entry  ipcachemap.Entry
}

// layout is what has to be written and deleted so that the kernel has what is
// wanted, as far as it fits.
type layout struct {
	puts []put
	gone []netip.Prefix
	left int // prefixes that have no room
}

// target is what the kernel should have for a prefix that has room. What was
// closed before the start stays so until all sources have told what they know:
// what it was closed for may not have been heard of yet. c.mu is held.
func (c *IPCache) target(p netip.Prefix, r *realized) ipcachemap.Entry {
	if _, ok := c.sealed[p]; ok {
		return closed
	}
	return r.wish
}

// plan compares what the kernel has with what it should have: for the tasks
// alone where everything has room, else for all prefixes. c.mu is held.
func (c *IPCache) plan(tasks []task) layout {
	var l layout
	if c.unsure || c.left > 0 || c.wanted > c.room-reservedPlaces {
		c.fit(&l)
	} else {
		for _, t := range tasks {
			if r, ok := c.realized.get(t.prefix); ok {
				l.compare(t.prefix, r, r.wanted, c.target(t.prefix, r))
			}
		}
	}
	// The longest match of an address is written before what is wider, and deleted
	// after it: so an address has the answer from before or that from after.
	slices.SortFunc(l.puts, func(a, b put) int { return narrowFirst(a.prefix, b.prefix) })
	slices.SortFunc(l.gone, func(a, b netip.Prefix) int { return narrowFirst(b, a) })
	return l
}

func narrowFirst(a, b netip.Prefix) int {
	return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), a.Compare(b))
}

func (l *layout) compare(p netip.Prefix, r *realized, there bool, e ipcachemap.Entry) {
	switch {
	case there && (!r.in || r.kernel != e):
		l.puts = append(l.puts, put{p, e})
	case !there && r.in:
		l.gone = append(l.gone, p)
	}
}

// The ranks of prefixes where there is not room for all; the first get a place
// first. A prefix around others goes before those inside, since without it what is
// around it would be closed. Among equals the order of address decides: so those
// left out lie together and close as few others as possible.
const (
	rankLocal  = iota // this node
	rankOwn           // other addresses of the cluster
	rankAround        // prefixes of policies with others inside
	rankInner
	ranks
)

type candidate struct {
	prefix netip.Prefix
	*realized
	rank   int
	kept   bool
	closed bool
}

// candidates are all prefixes that are wanted or in the kernel, wide ones before
// those inside. c.mu is held.
func (c *IPCache) candidates() []candidate {
	all := make([]candidate, 0, c.realized.size)
	c.realized.all(func(p netip.Prefix, r *realized) { all = append(all, candidate{prefix: p, realized: r}) })
	var next netip.Prefix // wanted, after the one at hand
	for i := len(all) - 1; i >= 0; i-- {
		x := &all[i]
		if !x.wanted {
			continue
		}
		switch {
		case x.own && x.source >= SourceLocal:
			x.rank = rankLocal
		case x.own:
			x.rank = rankOwn
		case next.IsValid() && x.prefix.Contains(next.Addr()):
			x.rank = rankAround
		default:
			x.rank = rankInner
		}
		next = x.prefix
	}
	return all
}

// fit chooses the prefixes that get a place. The nearest one around each that is
// left out is closed, or all of the family if there is none. c.mu is held.
func (c *IPCache) fit(l *layout) {
	all := c.candidates()
	var places [ranks]int // asked for, then those that are there
	for _, x := range all {
		if x.wanted && x.prefix.Bits() > 0 {
			places[x.rank]++
		}
	}
	room := c.room - reservedPlaces
	for i := range places {
		places[i] = min(places[i], room)
		room -= places[i]
	}
	var around []int // the kept prefixes around the one at hand, widest first
	var guard [2]bool
	for i := range all {
		x := &all[i]
		if !x.wanted {
			continue
		}
		for len(around) > 0 && !all[around[len(around)-1]].prefix.Contains(x.prefix.Addr()) {
			around = around[:len(around)-1]
		}
		switch {
		case x.prefix.Bits() == 0:
			x.kept = true
		case places[x.rank] > 0:
			places[x.rank]--
			x.kept = true
		}
		switch {
		case x.kept:
			around = append(around, i)
		case len(around) > 0:
			all[around[len(around)-1]].closed = true
		default:
			guard[family(x.prefix)] = true
		}
		if !x.kept {
			l.left++
		}
	}
	for i, everything := range everythings {
		if guard[i] {
			r, ok := c.realized.get(everything)
			if !ok {
				r = &realized{}
			}
			l.compare(everything, r, true, closed)
		}
	}
	for _, x := range all {
		if !x.kept && x.prefix.Bits() == 0 && guard[family(x.prefix)] {
			continue
		}
		e := closed
		if !x.closed {
			e = c.target(x.prefix, x.realized)
		}
		l.compare(x.prefix, x.realized, x.kept, e)
	}
}

// everythings are the prefixes that contain all others, by family.
var everythings = [2]netip.Prefix{
	netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// step is one call to the kernel: entries to write, or else prefixes to delete.
type step struct {
	puts []put
	gone []netip.Prefix
}

// steps puts a layout in the order in which no address ever has an answer that is
// neither that from before, nor that from after, nor closed. c.mu is held.
func (c *IPCache) steps(l layout) []step {
	count := c.placed
	for _, x := range l.puts {
		if r, ok := c.realized.get(x.prefix); (!ok || !r.in) && x.prefix.Bits() > 0 {
			count++
		}
	}
	if len(l.gone) == 0 || count <= c.room-reservedPlaces {
		return []step{{puts: l.puts}, {gone: l.gone}}
	}
	// Deletions have to make room first: what they would uncover is closed meanwhile.
	going := map[netip.Prefix]struct{}{}
	for _, p := range l.gone {
		if p.Bits() > 0 {
			going[p] = struct{}{}
		}
	}
	shut := map[netip.Prefix]struct{}{}
	for p := range going {
		q, _, ok := c.realized.longestIf(p, func(q netip.Prefix, r *realized) bool {
			_, goes := going[q]
			return r.in && !goes
		})
		if !ok {
			q = everythings[family(p)]
		}
		shut[q] = struct{}{}
	}
	written := map[netip.Prefix]struct{}{}
	for _, x := range l.puts {
		written[x.prefix] = struct{}{}
	}
	var shutting, opening []put
	var late []netip.Prefix // of everythings: they go when the rest is there
	for _, p := range l.gone {
		if p.Bits() == 0 {
			late = append(late, p)
		}
	}
	for q := range shut {
		r, ok := c.realized.get(q)
		if ok && r.in && r.kernel == closed {
			continue
		}
		shutting = append(shutting, put{q, closed})
		if _, ok := written[q]; ok || slices.Contains(late, q) {
			continue
		}
		if ok && r.in {
			opening = append(opening, put{q, r.kernel})
		} else {
			late = append(late, q)
		}
	}
	opening = append(opening, l.puts...)
	slices.SortFunc(opening, func(a, b put) int { return narrowFirst(a.prefix, b.prefix) })
	first := slices.DeleteFunc(slices.Clone(l.gone), func(p netip.Prefix) bool { return p.Bits() == 0 })
	return []step{{puts: shutting}, {gone: first}, {puts: opening}, {gone: late}}
}

// carryOut does the steps until one fails.
func (c *IPCache) carryOut(steps []step) (touched bool, err error) {
	for _, s := range steps {
		prefixes, entries := make([]netip.Prefix, len(s.puts)), make([]ipcachemap.Entry, len(s.puts))
		for i, x := range s.puts {
			prefixes[i], entries[i] = x.prefix, x.entry
		}
		if len(prefixes) > 0 {
			touched = true
			if err := c.cfg.Kernel.Write(prefixes, entries); err != nil {
				return true, fmt.Errorf("write %d entries of the ipcache map: %w", len(prefixes), err)
			}
		}
		if len(s.gone) > 0 {
			touched = true
			if err := c.cfg.Kernel.Delete(s.gone...); err != nil {
				return true, fmt.Errorf("delete %d entries of the ipcache map: %w", len(s.gone), err)
			}
		}
	}
	return touched, nil
}

// Check has the kernel's map compared with what was written, soon, and what others
// did to it undone.
func (c *IPCache) Check() {
	c.mu.Lock()
	c.doubted = true
	c.mu.Unlock()
	c.kick()
}

// reread learns what the kernel has, after a failure that left it unknown or when
// it is to be checked.
func (c *IPCache) reread() error {
	c.mu.Lock()
	unsure, doubted := c.unsure, c.doubted
	c.mu.Unlock()
	if !unsure && !doubted {
		return nil
	}
	entries, err := c.cfg.Kernel.Dump()
	if err != nil {
		return fmt.Errorf("read the ipcache map: %w", err)
	}
	changed, err := c.expel(entries)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := map[netip.Prefix]ipcachemap.Entry{}
	c.realized.all(func(p netip.Prefix, r *realized) {
		if r.in {
			was[p] = r.kernel
		}
	})
	for p := range was {
		if _, ok := entries[p]; !ok {
			c.inKernel(p, nil)
			changed++
		}
	}
	for p, e := range entries {
		if before, ok := was[p]; !ok || before != e {
			c.inKernel(p, &e)
			changed++
		}
	}
	if changed > 0 && !unsure {
		c.cfg.Logger.Warn("The ipcache map was changed from outside the agent and is mended", "entries", changed)
	}
	c.unsure, c.doubted = c.unsure || changed > 0, false
	return nil
}

// expel deletes the prefixes of entries that only others can have written, before
// anything is written: they may have left no room for closing what has to be closed.
func (c *IPCache) expel(entries map[netip.Prefix]ipcachemap.Entry) (gone int, err error) {
	var strange []netip.Prefix
	c.mu.Lock()
	for p := range entries {
		if r, ok := c.realized.get(p); p.Bits() > 0 && (!ok || !r.in && !r.wanted) {
			strange = append(strange, p)
		}
	}
	c.mu.Unlock()
	if len(strange) == 0 {
		return 0, nil
	}
	if err := c.cfg.Kernel.Delete(strange...); err != nil {
		return 0, fmt.Errorf("delete %d entries of the ipcache map that are not of this agent: %w", len(strange), err)
	}
	for _, p := range strange {
		delete(entries, p)
	}
	c.cfg.Policy.IPCacheChanged()
	return len(strange), nil
}

// inKernel records what the kernel has for a prefix; nil: nothing. c.mu is held.
func (c *IPCache) inKernel(p netip.Prefix, e *ipcachemap.Entry) {
	r, ok := c.realized.get(p)
	if !ok {
		if e == nil {
			return
		}
		r = &realized{source: SourceGenerated}
		c.realized.put(p, r)
	}
	if p.Bits() > 0 && r.in != (e != nil) {
		if r.in {
			c.placed--
		} else {
			c.placed++
		}
	}
	r.in, r.kernel = e != nil, ipcachemap.Entry{}
	if e != nil {
		r.kernel = *e
	}
	if !r.in && !r.wanted && len(r.holds) == 0 {
		c.realized.remove(p)
	}
}

// crowded says how many prefixes have no room; nil: none. c.mu is held.
func (c *IPCache) crowded() error {
	if c.left == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d prefixes have no place among %d, and their addresses are denied (prefix-closed): %w", c.left, c.wanted, c.room, ipcachemap.ErrFull)
}
