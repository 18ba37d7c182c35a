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
	kernel   ipcachemap.Entry
	certain  bool // the kernel has exactly kernel; false after a failed write
	own      bool
	pod      identity.NumericIdentity // kept ready for pods inside; 0: none
	source   Source
	resource string
	holds    []identity.NumericIdentity // references taken for it
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
	old    *realized // nil: not in the kernel as far as is known
	err    error     // a number could not be had; next is a safe stand-in
}

// Start reads the kernel's entries and starts the worker.
func (c *IPCache) Start(context.Context) error {
	entries, err := c.cfg.Kernel.Dump()
	if err != nil {
		return fmt.Errorf("read the ipcache map: %w", err)
	}
	c.mu.Lock()
	for p, e := range entries {
		c.leftover[p] = struct{}{}
		c.remember(p, &realized{kernel: e, certain: true, source: SourceRestored,
			own: e.PrefixIdentity != e.Identity && !identity.NumericIdentity(e.Identity).IsLocal()})
	}
	c.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.worker.Add(1)
	go func() {
		defer c.worker.Done()
		c.run(ctx)
	}()
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
	clear(c.leftover)
}

func (c *IPCache) run(ctx context.Context) {
	wait := c.cfg.RetryMin
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		err := c.round(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			wait = c.cfg.RetryMin
			continue
		}
		c.cfg.Logger.Warn("Addresses are not all in the kernel; trying again", "error", err, "after", wait)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = min(2*wait, c.cfg.RetryMax)
		c.kick()
	}
}

// round brings all marked prefixes into the kernel. Those that failed are
// marked again.
func (c *IPCache) round(ctx context.Context) error {
	err := c.withdrawOrphans(ctx)
	if err != nil {
		return c.finish(0, nil, err)
	}
	tasks, upTo := c.collect()
	errs := []error{c.number(ctx, tasks)}
	if err := c.announce(ctx, tasks); err != nil {
		c.giveBack(ctx, tasks)
		return c.finish(0, tasks, err)
	}
	failed, released, err := c.write(tasks)
	errs = append(errs, err)
	for i := range tasks {
		if tasks[i].err != nil {
			failed = append(failed, tasks[i])
		}
	}
	errs = append(errs, c.release(ctx, released))
	return c.finish(upTo, failed, errors.Join(errs...))
}

// finish records the outcome and wakes who waits.
func (c *IPCache) finish(upTo uint64, failed []task, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range failed {
		c.dirty[t.prefix] = struct{}{}
	}
	c.problem = err
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
		t.old, _ = c.realized.get(p)
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

// number allocates every number that the wishes need.
func (c *IPCache) number(ctx context.Context, tasks []task) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	var sets []labels.LabelArray
	var asked []func(cache.Result)
	for i := range tasks {
		t := &tasks[i]
		w := t.want
		t.next = realized{certain: true, own: w.own, source: w.source, resource: w.resource}
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
		ask(w.labels, func(id identity.NumericIdentity) { t.next.kernel.Identity = uint32(id) })
		ask(w.prefix, func(id identity.NumericIdentity) { t.next.kernel.PrefixIdentity = uint32(id) })
		ask(w.pod, func(id identity.NumericIdentity) { t.next.pod = id })
	}
	if len(sets) > 0 {
		for i, r := range c.cfg.Identities.AllocateAll(ctx, sets) {
			asked[i](r)
		}
	}
	var first error
	failed := 0
	for i := range tasks {
		tasks[i].complete()
		if tasks[i].err != nil {
			failed++
			if first == nil {
				first = tasks[i].err
			}
		}
	}
	if first != nil {
		return fmt.Errorf("%d prefixes have no identity of their own, the first because: %w", failed, first)
	}
	return nil
}

// takeKnown takes a reference on a number that an owner says exists.
func (c *IPCache) takeKnown(t *task, ask func(labels.LabelArray, func(identity.NumericIdentity))) {
	if t.want.number.IsReserved() {
		t.next.kernel.Identity = uint32(t.want.number)
		return
	}
	known, ok := c.cfg.Identities.LookupByID(t.want.number)
	if !ok {
		t.err = fmt.Errorf("identity %s of %s (%s) has no users any more", t.want.number, t.prefix, t.want.resource)
		return
	}
	ask(known.LabelArray, func(id identity.NumericIdentity) {
		t.next.kernel.Identity = uint32(id)
		if id != t.want.number {
			t.err = fmt.Errorf("identity %s of %s (%s) was given up meanwhile", t.want.number, t.prefix, t.want.resource)
		}
	})
}

// complete fills in what no number could be had for, so that nothing wider
// stands in for the prefix, and makes an outside prefix its own "where".
func (t *task) complete() {
	k := &t.next.kernel
	switch {
	case !t.want.exists:
	case k.Identity == 0 && t.want.own:
		k.Identity = uint32(identity.ReservedUnmanaged)
	case k.Identity == 0:
		k.Identity = uint32(world(t.prefix.Addr()))
	case !t.want.own:
		k.PrefixIdentity = k.Identity
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

// write brings the entries into the kernel and tells the endpoints. It returns
// the tasks to repeat and the references no longer needed.
func (c *IPCache) write(tasks []task) (failed []task, released []identity.NumericIdentity, err error) {
	put := map[netip.Prefix]ipcachemap.Entry{}
	var del []netip.Prefix
	for _, t := range tasks {
		switch {
		case t.want.exists && (t.old == nil || !t.old.certain || t.old.kernel != t.next.kernel):
			put[t.prefix] = t.next.kernel
		case !t.want.exists && t.old != nil:
			del = append(del, t.prefix)
		}
	}
	var putErr, delErr error
	if len(put) > 0 {
		if putErr = c.cfg.Kernel.Upsert(put); putErr != nil {
			putErr = fmt.Errorf("write %d entries of the ipcache map: %w", len(put), putErr)
		}
	}
	if len(del) > 0 { // also after a failure: it makes room
		if delErr = c.cfg.Kernel.Delete(del...); delErr != nil {
			delErr = fmt.Errorf("delete %d entries of the ipcache map: %w", len(del), delErr)
		}
	}
	type told struct {
		addr netip.Addr
		Entry
	}
	var tell []told
	c.mu.Lock()
	for i := range tasks {
		t := &tasks[i]
		_, wrote := put[t.prefix]
		if wrote && putErr != nil || !t.want.exists && t.old != nil && delErr != nil {
			c.doubt(t)
			failed = append(failed, *t)
			continue
		}
		if t.old != nil {
			released = append(released, t.old.holds...)
		}
		if !t.want.exists {
			c.remember(t.prefix, nil)
			continue
		}
		next := t.next
		c.remember(t.prefix, &next)
		if next.own && t.prefix.IsSingleIP() && (wrote || !t.old.own) {
			tell = append(tell, told{t.prefix.Addr(), next.entry(t.prefix)})
		}
	}
	c.mu.Unlock()
	for _, x := range tell {
		c.cfg.OnAddress(x.addr, x.Identity, x.PrefixIdentity)
	}
	if len(put)+len(del) > 0 {
		c.cfg.Policy.IPCacheChanged()
	}
	return failed, released, errors.Join(putErr, delErr)
}

// doubt records that the kernel may have the old or the new entry: both keep
// their references. c.mu is held.
func (c *IPCache) doubt(t *task) {
	r := t.next
	if t.old != nil {
		r = *t.old
		r.holds = slices.Concat(t.old.holds, t.next.holds)
	}
	r.certain = false
	c.remember(t.prefix, &r)
}

// remember sets what is realized for a prefix; nil: nothing. c.mu is held.
func (c *IPCache) remember(p netip.Prefix, r *realized) {
	if old, ok := c.realized.get(p); ok {
		c.eachUser(old, func(id identity.NumericIdentity) {
			delete(c.users[id], p)
			if len(c.users[id]) == 0 {
				delete(c.users, id)
			}
		})
	}
	if r == nil {
		c.realized.remove(p)
		return
	}
	c.realized.put(p, r)
	c.eachUser(r, func(id identity.NumericIdentity) {
		if c.users[id] == nil {
			c.users[id] = map[netip.Prefix]struct{}{}
		}
		c.users[id][p] = struct{}{}
	})
}

func (c *IPCache) eachUser(r *realized, f func(identity.NumericIdentity)) {
	f(identity.NumericIdentity(r.kernel.Identity))
	if r.kernel.PrefixIdentity != 0 {
		f(identity.NumericIdentity(r.kernel.PrefixIdentity))
	}
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
