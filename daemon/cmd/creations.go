package cmd

import "sync"

// creations are the attachments whose endpoint is being made: their leases are in
// use, also while the endpoint of a former link goes.
type creations struct {
	mu    sync.Mutex
	under map[string]int
}

// begin notes one, until end is called.
func (c *creations) begin(attachment string) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under == nil {
		c.under = map[string]int{}
	}
	c.under[attachment]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.under[attachment]--; c.under[attachment] == 0 {
			delete(c.under, attachment)
		}
	}
}

// releaseUnused gives the lease of a deleted endpoint back, unless the attachment has
// another endpoint, or gets one: a lease that still expires is of an ADD under way.
func (a *endpoints) releaseUnused(attachment string) error {
	a.under.mu.Lock()
	defer a.under.mu.Unlock()
	if a.under.under[attachment] > 0 {
		return nil
	}
	for _, l := range a.leases.IPAM.Leases() {
		if l.Owner != attachment || !l.Expires.IsZero() {
			continue
		}
		for _, addr := range l.Addrs() {
			if a.leases.user(addr) != 0 {
				return nil
			}
		}
		_, err := a.leases.ReleaseOwner(attachment)
		return err
	}
	return nil
}
