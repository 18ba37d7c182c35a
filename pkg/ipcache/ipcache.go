package ipcache

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

// policyUpdater is policy/repository and the endpoints behind it.
type policyUpdater interface {
	// UpdateIdentities returns when the policy maps of all endpoints hold the
	// added identities, or hold the removed ones no more.
	UpdateIdentities(ctx context.Context, added, removed identity.IdentityMap) error
	// IPCacheChanged lets live flows be judged again at their next packet.
	IPCacheChanged()
}

// kernelMap is ipcachemap.Map. A failed call may have been done in part.
type kernelMap interface {
	Room() int
	Write(prefixes []netip.Prefix, entries []ipcachemap.Entry) error // in this order
	Delete(prefixes ...netip.Prefix) error                           // in this order
	Dump() (map[netip.Prefix]ipcachemap.Entry, error)
}

// allocator is identity/cache.
type allocator interface {
	AllocateAll(ctx context.Context, sets []labels.LabelArray) []cache.Result
	Release(ctx context.Context, id identity.NumericIdentity) (gone bool, err error)
	LookupByID(id identity.NumericIdentity) (*identity.Identity, bool)
}

// Observer hears of addresses with metadata whose entry is now this one. It is
// called from the worker, after the kernel's entry was written and before an
// identity that the address had leaves the policy maps.
type Observer func(addr netip.Addr, id, prefixIdentity identity.NumericIdentity)

// Config of an IPCache. Logger, Identities, Policy and Kernel are required.
type Config struct {
	Logger     *slog.Logger
	Identities allocator
	Policy     policyUpdater
	Kernel     kernelMap
	OnAddress  Observer // nil: nobody listens
	// PodPrefixes are the node's address pools. Prefix identities of policy
	// blocks that overlap them exist before a pod needs them, so that
	// PrefixIdentity answers for the first packet of a new pod.
	PodPrefixes []netip.Prefix
	Timeout     time.Duration // of one call to Policy or Identities; 0: 1 minute
	RetryMin    time.Duration // wait after the first failure, doubled up to RetryMax; 0: 100 ms
	RetryMax    time.Duration // 0: 10 s
}

// IPCache resolves addresses. Its methods may be called from any goroutine.
type IPCache struct {
	cfg    Config
	wake   chan struct{} // holds one token while there may be work
	stop   context.CancelFunc
	worker sync.WaitGroup

	mu       sync.Mutex // guards all below, and is held for no call to another package
	metadata map[netip.Prefix]map[string]info
	owners   trie[owner]    // the winner of each prefix with metadata
	prefixes trie[bool]     // P; true: used by a block that matches pods
	pods     trie[struct{}] // the prefixes of P that are true
	removed  tombs          // owners that were removed
	sequence uint64         // of upserts
	dirty    map[netip.Prefix]struct{}
	late     map[netip.Prefix]error    // closed, as no number could be had: tried again later
	changes  uint64                    // requests so far
	done     uint64                    // requests that are in the kernel
	advanced chan struct{}             // closed when done moves
	leftover map[netip.Prefix]struct{} // kernel entries from before the start that nobody asked for
	sealed   map[netip.Prefix]struct{} // those that were closed then

	realized trie[*realized] // what the worker has done
	room     int             // places in the kernel's map
	wanted   int             // prefixes that want a place, without everythings
	placed   int             // prefixes in the kernel, without everythings
	left     int             // prefixes that want a place and have none
	unsure   bool            // what the kernel has is not known, after a failure
	doubted  bool            // somebody else may have changed it, see Check
	problem  error           // of the last round

	// Only the worker touches these.
	held    map[identity.NumericIdentity]holding
	orphans identity.IdentityMap // gone, but not yet withdrawn from the policy
}

// info is one owner's metadata.
type info struct {
	source   Source
	metadata Metadata
	sequence uint64
}

type owner struct {
	resource string
	info
}

// New returns a cache that does nothing until Start.
func New(cfg Config) *IPCache {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.RetryMin == 0 {
		cfg.RetryMin = 100 * time.Millisecond
	}
	if cfg.RetryMax == 0 {
		cfg.RetryMax = 10 * time.Second
	}
	if cfg.OnAddress == nil {
		cfg.OnAddress = func(netip.Addr, identity.NumericIdentity, identity.NumericIdentity) {}
	}
	return &IPCache{
		cfg: cfg, wake: make(chan struct{}, 1), advanced: make(chan struct{}),
		metadata: map[netip.Prefix]map[string]info{}, dirty: map[netip.Prefix]struct{}{},
		late: map[netip.Prefix]error{}, leftover: map[netip.Prefix]struct{}{}, sealed: map[netip.Prefix]struct{}{},
		held: map[identity.NumericIdentity]holding{}, orphans: identity.IdentityMap{},
	}
}

// UpsertMetadata sets what an owner (resource) says about a prefix. It returns
// before the kernel knows; WaitSynced waits for that. An invalid prefix is ignored.
func (c *IPCache) UpsertMetadata(prefix netip.Prefix, src Source, resource string, m Metadata) {
	prefix = labels.CanonicalPrefix(prefix)
	if !prefix.IsValid() {
		c.cfg.Logger.Warn("Metadata of an invalid prefix ignored", "resource", resource, "source", src.String())
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.metadata[prefix]
	if all == nil {
		all = map[string]info{}
		c.metadata[prefix] = all
	}
	if old, ok := all[resource]; ok && old.source == src && old.metadata.equal(m) {
		return
	}
	c.sequence++
	all[resource] = info{src, m, c.sequence}
	c.electOwner(prefix)
}

// RemoveMetadata takes back what this owner said about a prefix and nothing
// else. What is not there is no error.
func (c *IPCache) RemoveMetadata(prefix netip.Prefix, resource string) {
	prefix = labels.CanonicalPrefix(prefix)
	if !prefix.IsValid() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed.add(tomb{prefix, resource})
	if all := c.metadata[prefix]; all != nil {
		delete(all, resource)
		if len(all) == 0 {
			delete(c.metadata, prefix)
		}
	}
	c.electOwner(prefix)
}

// Publish says that an address has an identity that exists: a local endpoint's.
func (c *IPCache) Publish(addr netip.Addr, resource string, id identity.NumericIdentity) {
	c.UpsertMetadata(hostPrefix(addr), SourceLocal, resource, Metadata{Identity: id})
}

// Withdraw takes back what Publish said for this owner.
func (c *IPCache) Withdraw(addr netip.Addr, resource string) {
	c.RemoveMetadata(hostPrefix(addr), resource)
}

func hostPrefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// ChangePolicyPrefixes changes P: the prefixes that the policies name, excepts
// included; true: used by a block that matches pods. None is both put and gone.
func (c *IPCache) ChangePolicyPrefixes(put map[netip.Prefix]bool, gone []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range gone {
		p = labels.CanonicalPrefix(p)
		if pods, ok := c.prefixes.get(p); ok {
			c.prefixes.remove(p)
			c.prefixChanged(p, pods, false)
		}
	}
	for p, pods := range put {
		if p = labels.CanonicalPrefix(p); !p.IsValid() {
			continue
		}
		if old, ok := c.prefixes.get(p); !ok || old != pods {
			c.prefixes.put(p, pods)
			c.prefixChanged(p, old, pods)
		}
	}
}

// Lookup resolves an address as the kernel does. Without an entry it is world;
// where the kernel has no room or number for its prefix it is closed.
func (c *IPCache) Lookup(addr netip.Addr) Entry {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() {
		return Entry{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p, r, ok := c.realized.longestIf(hostPrefix(addr), func(_ netip.Prefix, r *realized) bool { return r.in })
	if !ok {
		return Entry{Identity: world(addr)}
	}
	return r.entry(p)
}

// PrefixIdentity is the prefix identity that a pod's address has, or would have
// if a pod had it; 0: none, or none known yet (then OnAddress tells it later);
// closed: there is no number for it.
func (c *IPCache) PrefixIdentity(addr netip.Addr) identity.NumericIdentity {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := hostPrefix(addr)
	if r, ok := c.realized.get(p); ok && r.own {
		return identity.NumericIdentity(r.wish.PrefixIdentity)
	}
	if q, _, ok := c.pods.longest(p); ok {
		if r, ok := c.realized.get(q); ok {
			return r.pod
		}
	}
	return 0
}

// Dump returns all entries of the kernel, IPv4 first, in order of address.
func (c *IPCache) Dump() []Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Entry, 0, c.realized.size)
	c.realized.all(func(p netip.Prefix, r *realized) {
		if r.in {
			out = append(out, r.entry(p))
		}
	})
	return out
}

// WaitSynced waits until everything asked for before the call is in the kernel, or
// closed because there is no room or no number for it. A kernel that refuses the
// entries holds up everybody. It fails with ctx; the error then says what the last round failed with.
func (c *IPCache) WaitSynced(ctx context.Context) error {
	c.mu.Lock()
	want := c.changes
	for c.done < want {
		advanced := c.advanced
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return waitError(ctx, c.Problem())
		case <-advanced:
		}
		c.mu.Lock()
	}
	c.mu.Unlock()
	return nil
}

// Synced reports whether everything asked for so far is in the kernel, all of it.
func (c *IPCache) Synced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done >= c.changes && c.left == 0 && len(c.late) == 0
}

// Problem is the error of the last round, or says how many prefixes have no number
// or no room; nil if there is none of these.
func (c *IPCache) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}
