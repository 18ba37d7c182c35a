package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// FileName is the checkpoint's name inside Config.Dir.
const FileName = "identities.json"

// DefaultRest is how long a released number stays unused.
const DefaultRest = 10 * time.Second

// ErrExhausted says that a scope has no free number. The error around it names
// the range.
var ErrExhausted = errors.New("no identity number left")

// Config of a Cache. The zero value of every field but Logger works.
type Config struct {
	Logger *slog.Logger
	Dir    string // of the checkpoint, on a disk that survives a reboot; empty: numbers do not survive a restart
	Former string // the checkpoint's path of former builds, taken over where there is none in Dir
	// Busy are the numbers found in kernel maps at the start. Only the set that the
	// checkpoint or Known names for one gets it.
	Busy []identity.NumericIdentity
	// Known are numbers whose sets are known from elsewhere: records of endpoints,
	// prefixes of the kernel. They count where the checkpoint says nothing else.
	Known    identity.IdentityMap
	Min, Max identity.NumericIdentity // range of the global scope; 0: 256 and 65535
	LocalMin identity.NumericIdentity // range of the local scope; 0: the whole scope
	LocalMax identity.NumericIdentity
	Rest     time.Duration    // how long a released number stays unused; 0: DefaultRest, negative: not at all
	Now      func() time.Time // nil: time.Now
}

// Cache is the node's allocator of identities. Its methods may be called from
// any goroutine.
type Cache struct {
	log  *slog.Logger
	file *checkpoint // nil: no state directory
	rest time.Duration
	now  func() time.Time

	mu         sync.Mutex // guards all below
	byID       map[identity.NumericIdentity]*entry
	byKey      map[string]*entry
	spaces     map[identity.Scope]*space
	busy       map[identity.NumericIdentity]bool
	resting    resting
	generation uint64 // grows with every new entry
}

// entry is a number with its label set, in use or held for a restored set.
type entry struct {
	id         identity.NumericIdentity
	array      labels.LabelArray
	key        string
	refs       int    // 0: held since the restart
	generation uint64 // of its birth; on disk once the checkpoint has got there
	extra      fields // of its record in the checkpoint, not known to this version
}

// New returns a cache with the numbers of the checkpoint, and those known from
// elsewhere, held for their label sets. A checkpoint that cannot be used is set
// aside.
func New(cfg Config) (*Cache, error) {
	c := &Cache{
		log: cfg.Logger, rest: cfg.Rest, now: cfg.Now,
		byID: map[identity.NumericIdentity]*entry{}, byKey: map[string]*entry{},
		busy:   map[identity.NumericIdentity]bool{},
		spaces: newSpaces(cfg),
	}
	if c.rest == 0 {
		c.rest = DefaultRest
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	for _, id := range cfg.Busy {
		c.busy[id] = true
	}
	if cfg.Dir != "" {
		if err := atomicfile.Dir(cfg.Dir, 0o750); err != nil {
			return nil, fmt.Errorf("directory of the identities' checkpoint: %w", err)
		}
		c.file = newCheckpoint(filepath.Join(cfg.Dir, FileName), c.log)
		c.restore(cfg.Former)
	}
	for _, id := range slices.Sorted(maps.Keys(cfg.Known)) {
		if err := c.Hold(id, cfg.Known[id]); err != nil {
			c.log.Debug("What is known of an identity elsewhere is not used", "identity", uint32(id), "error", err)
		}
	}
	return c, nil
}

// Hold keeps a number for its label set, as one of the checkpoint. It fails for a
// number or a set that is held or used already.
func (c *Cache) Hold(id identity.NumericIdentity, a labels.LabelArray) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hold(record{ID: id, Labels: a.Key()})
}

// Held returns the labels of a number in use or held; nil: it is not known.
func (c *Cache) Held(id identity.NumericIdentity) labels.LabelArray {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byID[id]; e != nil {
		return e.array
	}
	return nil
}

// Allocate takes a reference on the identity of a label set and returns it with
// its number on disk. isNew says that the set had no user before. A reserved set
// gives its fixed number and takes no reference. Errors: ErrExhausted, a set
// that mixes reserved labels with others, a checkpoint that cannot be written,
// ctx; after an error no reference is held.
func (c *Cache) Allocate(ctx context.Context, a labels.LabelArray) (id *identity.Identity, isNew bool, err error) {
	r := c.AllocateAll(ctx, []labels.LabelArray{a})[0]
	return r.Identity, r.IsNew, r.Err
}

// Result of one set of AllocateAll.
type Result struct {
	Identity *identity.Identity // nil after an error
	IsNew    bool
	Err      error
}

// AllocateAll is Allocate for many sets with one write of the checkpoint. Sets
// fail one by one; a repeated set takes a reference each time.
func (c *Cache) AllocateAll(ctx context.Context, sets []labels.LabelArray) []Result {
	out := make([]Result, len(sets))
	var newest uint64
	c.mu.Lock()
	for i, a := range sets {
		e, isNew, err := c.take(a)
		if err != nil {
			out[i].Err = fmt.Errorf("identity of %s: %w", a, err)
			continue
		}
		out[i] = Result{Identity: e.identity(), IsNew: isNew}
		newest = max(newest, e.generation)
	}
	c.mu.Unlock()
	if err := c.sync(ctx, newest); err != nil {
		for i := range out {
			if out[i].Err == nil {
				_, _ = c.Release(ctx, out[i].Identity.ID) // cannot fail: the reference was taken above
				out[i] = Result{Err: fmt.Errorf("record the identity of %s: %w", sets[i], err)}
			}
		}
	}
	return out
}

// take finds or makes the entry of a set and takes a reference. c.mu is held.
func (c *Cache) take(a labels.LabelArray) (e *entry, isNew bool, err error) {
	if id, ok := identity.LookupReservedByLabels(a); ok {
		return &entry{id: id, array: a}, false, nil
	}
	scope, err := scopeOf(a)
	if err != nil {
		return nil, false, err
	}
	key := a.Key()
	e, ok := c.byKey[key]
	if !ok {
		now := c.now()
		id, ok := c.spaces[scope].pick(func(id identity.NumericIdentity) bool {
			return c.byID[id] != nil || c.busy[id] || c.resting.has(id, now)
		})
		if !ok {
			return nil, false, c.spaces[scope].exhausted()
		}
		c.generation++
		e = &entry{id: id, array: a, key: key, generation: c.generation}
		c.byID[id], c.byKey[key] = e, e
	}
	e.refs++
	return e, e.refs == 1, nil
}

// scopeOf refuses sets in which a reserved label stands beside labels that
// anybody may write.
func scopeOf(a labels.LabelArray) (identity.Scope, error) {
	scope := identity.ScopeForLabels(a)
	if len(a) == 0 {
		return 0, fmt.Errorf("the set of labels is empty")
	}
	for _, l := range a {
		if scope == identity.ScopeGlobal && l.Source == labels.SourceReserved {
			return 0, fmt.Errorf("label %s cannot stand beside ordinary labels", l)
		}
	}
	return scope, nil
}

// Release gives one reference back. gone says that it was the last one; then the
// number is forgotten and rests. Reserved numbers are never gone. It fails for a
// number without users.
func (c *Cache) Release(_ context.Context, id identity.NumericIdentity) (gone bool, err error) {
	if id.IsReserved() {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[id]
	if e == nil || e.refs == 0 {
		return false, fmt.Errorf("release identity %s: it has no users", id)
	}
	e.refs--
	if e.refs > 0 {
		return false, nil
	}
	c.forget(e)
	return true, nil
}

// forget drops an entry without users. c.mu is held.
func (c *Cache) forget(e *entry) {
	delete(c.byID, e.id)
	delete(c.byKey, e.key)
	if c.rest > 0 {
		c.resting.add(e.id, c.now(), c.rest)
	}
}

// ReleaseRestored stops holding restored numbers that nobody took again, and
// returns how many those were. Call it when all endpoints and prefixes known
// before the restart have come back or are known to be gone.
func (c *Cache) ReleaseRestored() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.byID {
		if e.refs == 0 {
			c.forget(e)
			n++
		}
	}
	return n
}

// LookupByID returns the identity of a number in use, or of a reserved one.
func (c *Cache) LookupByID(id identity.NumericIdentity) (*identity.Identity, bool) {
	if a, ok := identity.LabelsOfReserved(id); ok {
		return identity.New(id, a), true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byID[id]; e != nil && e.refs > 0 {
		return e.identity(), true
	}
	return nil, false
}

// LookupByLabels returns the identity of a set in use, or of a reserved one. It
// takes no reference.
func (c *Cache) LookupByLabels(a labels.LabelArray) (*identity.Identity, bool) {
	if id, ok := identity.LookupReservedByLabels(a); ok {
		return identity.New(id, a), true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byKey[a.Key()]; e != nil && e.refs > 0 {
		return e.identity(), true
	}
	return nil, false
}

// List returns every identity in use and the reserved ones, in no order.
func (c *Cache) List() []*identity.Identity {
	var out []*identity.Identity
	for id, a := range identity.ReservedIdentities() {
		out = append(out, identity.New(id, a))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.byID {
		if e.refs > 0 {
			out = append(out, e.identity())
		}
	}
	return out
}

// Snapshot returns the labels of every number in use and of the reserved ones.
func (c *Cache) Snapshot() identity.IdentityMap {
	m := identity.ReservedIdentities()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.byID {
		if e.refs > 0 {
			m[id] = e.array
		}
	}
	return m
}

// Sync writes the checkpoint if anything changed since the last write, releases
// included. Call it before a planned stop.
func (c *Cache) Sync(ctx context.Context) error {
	c.mu.Lock()
	c.generation++
	want := c.generation
	c.mu.Unlock()
	return c.sync(ctx, want)
}

// sync returns when the checkpoint on disk has every entry up to a generation.
func (c *Cache) sync(ctx context.Context, generation uint64) error {
	if c.file == nil || generation == 0 {
		return nil
	}
	return c.file.flush(ctx, generation, c.contents)
}

func (e *entry) identity() *identity.Identity {
	i := identity.New(e.id, e.array)
	i.ReferenceCount = e.refs
	return i
}
