package ipcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

// realized is what the worker has done for a prefix.
type realized struct {
	wanted   bool             // somebody asks for it, or did before the start
	wish     ipcachemap.Entry // what it is to resolve to
	in       bool             // the kernel has an entry
	kernel   ipcachemap.Entry // namely this
	own      bool
	pod      identity.NumericIdentity // kept ready for pods inside; 0: none
	source   Source
	resource string
	holds    []identity.NumericIdentity // references taken for it
	untold   bool                       // who listens has not heard of the wish
}

func (r *realized) entry(p netip.Prefix) Entry {
	return Entry{Prefix: p, Identity: identity.NumericIdentity(r.kernel.Identity),
		PrefixIdentity: identity.NumericIdentity(r.kernel.PrefixIdentity), Source: r.source, Resource: r.resource}
}

// holding counts the references of the worker to a number that it announced.
type holding struct {
	labels labels.LabelArray
	count  int
}

// task is one prefix in a round.
type task struct {
	prefix netip.Prefix
	want   want
	next   realized
	old    *realized // nil: nobody wanted it and the kernel has nothing
	err    error     // a number could not be had; next is closed
	// released are the references that nobody needs once the wish is in the kernel.
	released []identity.NumericIdentity
}

// Start reads the kernel's entries and starts the worker.
func (c *IPCache) Start(context.Context) error {
	entries, err := c.cfg.Kernel.Dump()
	if err != nil {
		return fmt.Errorf("read the ipcache map: %w", err)
	}
	if err := c.restore(entries); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.worker.Add(1)
	go func() {
		defer c.worker.Done()
		c.run(ctx)
	}()
	return nil
}

// restore takes over the entries of the kernel.
func (c *IPCache) restore(entries map[netip.Prefix]ipcachemap.Entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room = c.cfg.Kernel.Room()
	for p, e := range entries {
		c.leftover[p] = struct{}{}
		if e.Identity == closed.Identity || e.PrefixIdentity == closed.PrefixIdentity {
			c.sealed[p] = struct{}{}
		}
		c.realized.put(p, &realized{wanted: true, wish: e, source: SourceRestored,
			own: e.PrefixIdentity != e.Identity && !identity.NumericIdentity(e.Identity).IsLocal()})
		c.inKernel(p, &e)
		if p.Bits() > 0 {
			c.wanted++
		}
	}
	if c.placed > c.room-reservedPlaces {
		return fmt.Errorf("the ipcache map holds %d prefixes, and of its %d places two have to be free; raise ipcache-entries to %d or more", c.placed, c.room, c.placed+reservedPlaces)
	}
	return nil
}

// Stop ends the worker and waits for it. The kernel's entries stay.
func (c *IPCache) Stop() {
	if c.stop != nil {
		c.stop()
		c.worker.Wait()
	}
}

// Prune deletes the entries that were in the kernel at the start and that nobody
// has asked for since. Call it when all sources have told what they know.
func (c *IPCache) Prune() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.leftover {
		c.mark(p)
	}
	for p := range c.sealed {
		c.mark(p)
	}
	clear(c.leftover)
	clear(c.sealed)
}

// run makes a round whenever something changed. What failed is tried again after a
// while of its own, which grows: it holds nothing else up.
func (c *IPCache) run(ctx context.Context) {
	wait := c.cfg.RetryMin
	var again <-chan time.Time // nil: nothing failed
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-again:
			again = nil
			c.takeLate()
		}
		err := c.round(ctx)
		if ctx.Err() != nil {
			return
		}
		late := c.unnumbered()
		if err == nil && late == nil {
			wait, again = c.cfg.RetryMin, nil
			continue
		}
		if again != nil {
			continue
		}
		c.cfg.Logger.Warn("Addresses are not all in the kernel; trying again", "error", errors.Join(err, late), "after", wait)
		again = time.After(wait)
		wait = min(2*wait, c.cfg.RetryMax)
	}
}

// takeLate marks the prefixes that wait for a number.
func (c *IPCache) takeLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.late {
		c.dirty[p] = struct{}{}
	}
}

// unnumbered says which prefixes have no number; nil: none.
func (c *IPCache) unnumbered() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lateError()
}

// lateError is unnumbered. c.mu is held.
func (c *IPCache) lateError() error {
	if len(c.late) == 0 {
		return nil
	}
	first := slices.SortedFunc(maps.Keys(c.late), netip.Prefix.Compare)[0]
	return fmt.Errorf("%d prefixes have no identity of their own and are closed (prefix-closed), the first, %s, because: %w", len(c.late), first, c.late[first])
}

// round brings all marked prefixes into the kernel. Those that failed are
// marked again, and those without a number noted as late.
func (c *IPCache) round(ctx context.Context) error {
	if err := c.withdrawOrphans(ctx); err != nil {
		return c.finish(0, nil, err)
	}
	if err := c.reread(); err != nil {
		return c.finish(0, nil, err)
	}
	tasks, upTo := c.collect()
	c.number(ctx, tasks)
	if err := c.announce(ctx, tasks); err != nil {
		c.giveBack(ctx, tasks)
		return c.finish(0, tasks, err)
	}
	failed, released, err := c.write(tasks)
	if err == nil {
		c.noteLate(tasks)
	}
	return c.finish(upTo, failed, errors.Join(err, c.release(ctx, released)))
}

// noteLate notes which prefixes were closed for want of a number.
func (c *IPCache) noteLate(tasks []task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range tasks {
		if t := &tasks[i]; t.err != nil {
			c.late[t.prefix] = t.err
		} else {
			delete(c.late, t.prefix)
		}
	}
}

// finish records the outcome and wakes who waits.
func (c *IPCache) finish(upTo uint64, failed []task, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range failed {
		c.dirty[t.prefix] = struct{}{}
	}
	c.problem = errors.Join(err, c.lateError(), c.crowded())
	if err == nil && upTo > c.done {
		c.done = upTo
		close(c.advanced)
		c.advanced = make(chan struct{})
	}
	return err
}

// collect takes the marked prefixes with their wishes.
func (c *IPCache) collect() ([]task, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tasks := make([]task, 0, len(c.dirty))
	for p := range c.dirty {
		t := task{prefix: p, want: c.desire(p)}
		if t.old, _ = c.realized.get(p); t.old != nil {
			t.released = t.old.holds
		}
		if _, restored := c.leftover[p]; restored && !t.want.exists {
			continue // not asked for yet: Prune decides
		}
		delete(c.leftover, p)
		tasks = append(tasks, t)
	}
	clear(c.dirty)
	slices.SortFunc(tasks, func(a, b task) int { return a.prefix.Compare(b.prefix) })
	return tasks, c.changes
}

// number allocates every number that the wishes need. A task that cannot have one
// has an error, and its prefix is closed.
func (c *IPCache) number(ctx context.Context, tasks []task) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	var sets []labels.LabelArray
	var asked []func(cache.Result)
	for i := range tasks {
		t := &tasks[i]
		w := t.want
		t.next = realized{own: w.own, source: w.source, resource: w.resource}
		ask := func(set labels.LabelArray, into func(identity.NumericIdentity)) {
			if len(set) == 0 {
				return
			}
			sets = append(sets, set)
			asked = append(asked, func(r cache.Result) {
				if r.Err != nil {
					t.err = r.Err
					return
				}
				into(r.Identity.ID)
				if !r.Identity.ID.IsReserved() {
					t.next.holds = append(t.next.holds, r.Identity.ID)
				}
			})
		}
		if w.number != 0 {
			c.takeKnown(t, ask)
		}
		ask(w.labels, func(id identity.NumericIdentity) { t.next.wish.Identity = uint32(id) })
		ask(w.prefix, func(id identity.NumericIdentity) { t.next.wish.PrefixIdentity = uint32(id) })
		ask(w.pod, func(id identity.NumericIdentity) { t.next.pod = id })
	}
	if len(sets) > 0 {
		for i, r := range c.cfg.Identities.AllocateAll(ctx, sets) {
			asked[i](r)
		}
	}
	for i := range tasks {
		tasks[i].complete()
	}
}

// takeKnown takes a reference on a number that an owner says exists.
func (c *IPCache) takeKnown(t *task, ask func(labels.LabelArray, func(identity.NumericIdentity))) {
	if t.want.number.IsReserved() {
		t.next.wish.Identity = uint32(t.want.number)
		return
	}
	known, ok := c.cfg.Identities.LookupByID(t.want.number)
	if !ok {
		t.err = fmt.Errorf("identity %s of %s (%s) has no users any more", t.want.number, t.prefix, t.want.resource)
		return
	}
	ask(known.LabelArray, func(id identity.NumericIdentity) {
		t.next.wish.Identity = uint32(id)
		if id != t.want.number {
			t.err = fmt.Errorf("identity %s of %s (%s) was given up meanwhile", t.want.number, t.prefix, t.want.resource)
		}
	})
}

// complete closes what no number could be had for, and makes an outside prefix its
// own "where".
func (t *task) complete() {
	e := &t.next.wish
	if !t.want.exists {
		return
	}
	if len(t.want.pod) > 0 && t.next.pod == 0 {
		t.next.pod = identity.ReservedClosed
	}
	if e.Identity == 0 {
		e.Identity = closed.Identity
	}
	if !t.want.own {
		e.PrefixIdentity = e.Identity
	} else if len(t.want.prefix) > 0 && e.PrefixIdentity == 0 {
		e.PrefixIdentity = closed.PrefixIdentity
	}
}

// announce tells the policy the numbers that it has not heard from here, and
// counts the new references.
func (c *IPCache) announce(ctx context.Context, tasks []task) error {
	added := identity.IdentityMap{}
	for i := range tasks {
		for _, id := range tasks[i].next.holds {
			if _, ok := c.held[id]; !ok {
				if known, ok := c.cfg.Identities.LookupByID(id); ok {
					added[id] = known.LabelArray
				}
			}
		}
	}
	if len(added) > 0 {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		if err := c.cfg.Policy.UpdateIdentities(ctx, added, nil); err != nil {
			return fmt.Errorf("announce %d identities to the policy: %w", len(added), err)
		}
	}
	for i := range tasks {
		for _, id := range tasks[i].next.holds {
			h := c.held[id]
			if h.count == 0 {
				h.labels = added[id]
			}
			h.count++
			c.held[id] = h
		}
	}
	return nil
}

// giveBack releases the numbers of tasks that will not be written. The policy
// may have heard of some, so those that are gone are withdrawn.
func (c *IPCache) giveBack(ctx context.Context, tasks []task) {
	for i := range tasks {
		for _, id := range tasks[i].next.holds {
			known, ok := c.cfg.Identities.LookupByID(id)
			gone, err := c.cfg.Identities.Release(ctx, id)
			if err != nil {
				c.cfg.Logger.Error("Reference to an identity lost", "identity", uint32(id), "error", err)
			}
			if gone && ok {
				c.orphans[id] = known.LabelArray
			}
		}
		tasks[i].next.holds = nil
	}
}

// write brings the wishes into the kernel, as far as there is room, and tells the
// endpoints. It returns the tasks to repeat and the references no longer needed.
func (c *IPCache) write(tasks []task) (failed []task, released []identity.NumericIdentity, err error) {
	c.mu.Lock()
	for _, t := range tasks {
		c.adopt(t)
	}
	l := c.plan(tasks)
	steps := c.steps(l)
	c.mu.Unlock()
	touched, err := c.carryOut(steps)
	type told struct {
		addr netip.Addr
		Entry
	}
	var tell []told
	c.mu.Lock()
	c.unsure = err != nil
	if err == nil {
		c.settle(l)
	}
	for _, t := range tasks {
		r, ok := c.realized.get(t.prefix)
		switch {
		case err != nil && ok && t.old != nil: // the kernel may have the former entry: both keep their references
			r.holds = slices.Concat(t.released, r.holds)
		case err == nil || !ok:
			released = append(released, t.released...)
			if ok && r.untold {
				r.untold = false
				tell = append(tell, told{t.prefix.Addr(), Entry{Identity: identity.NumericIdentity(r.wish.Identity), PrefixIdentity: identity.NumericIdentity(r.wish.PrefixIdentity)}})
			}
		}
	}
	c.mu.Unlock()
	for _, x := range tell {
		c.cfg.OnAddress(x.addr, x.Identity, x.PrefixIdentity)
	}
	if touched {
		c.cfg.Policy.IPCacheChanged()
	}
	if err != nil {
		failed = tasks
	}
	return failed, released, err
}

// adopt makes a task's wish that of its prefix. c.mu is held.
func (c *IPCache) adopt(t task) {
	r := &realized{}
	old := t.old
	if old == nil {
		old = &realized{}
	}
	*r = t.next
	r.wanted, r.in, r.kernel = t.want.exists, old.in, old.kernel
	r.untold = r.wanted && r.own && t.prefix.IsSingleIP() && (old.untold || !old.own || !old.wanted || old.wish != r.wish)
	if t.prefix.Bits() > 0 && r.wanted != old.wanted {
		if r.wanted {
			c.wanted++
		} else {
			c.wanted--
		}
	}
	if r.wanted || r.in {
		c.realized.put(t.prefix, r)
	} else {
		c.realized.remove(t.prefix)
	}
}

// settle records that the kernel has a layout. c.mu is held.
func (c *IPCache) settle(l layout) {
	for _, x := range l.puts {
		c.inKernel(x.prefix, &x.entry)
	}
	for _, p := range l.gone {
		c.inKernel(p, nil)
	}
	if l.left != c.left && l.left > 0 {
		c.cfg.Logger.Warn("Prefixes have no room in the kernel and are closed", "prefixes", l.left, "room", c.room, "next", "raise ipcache-entries")
	}
	c.left = l.left
}

// release gives references back and withdraws from the policy the identities
// that nobody uses any more.
func (c *IPCache) release(ctx context.Context, ids []identity.NumericIdentity) error {
	for _, id := range ids {
		h := c.held[id]
		h.count--
		c.held[id] = h
		if h.count <= 0 {
			delete(c.held, id)
		}
		gone, err := c.cfg.Identities.Release(ctx, id)
		if err != nil {
			c.cfg.Logger.Error("Reference to an identity lost", "identity", uint32(id), "error", err)
		}
		if gone {
			c.orphans[id] = h.labels
		}
	}
	return c.withdrawOrphans(ctx)
}

// withdrawOrphans takes identities that have gone out of the policy. One that
// has users again belongs to them.
func (c *IPCache) withdrawOrphans(ctx context.Context) error {
	maps.DeleteFunc(c.orphans, func(id identity.NumericIdentity, _ labels.LabelArray) bool {
		_, used := c.cfg.Identities.LookupByID(id)
		return used
	})
	if len(c.orphans) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if err := c.cfg.Policy.UpdateIdentities(ctx, nil, c.orphans.Clone()); err != nil {
		return fmt.Errorf("withdraw %d identities from the policy: %w", len(c.orphans), err)
	}
	clear(c.orphans)
	return nil
}

func waitError(ctx context.Context, problem error) error {
	err := fmt.Errorf("wait for addresses to reach the kernel: %w", ctx.Err())
	if problem != nil {
		err = fmt.Errorf("%w; last failure: %w", err, problem)
	}
	return err
}
