package ipcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
)

var errFault = errors.New("injected fault")

// world of a test: a policy and a kernel that record the dialogue and check the
// order that packets depend on.
type fakes struct {
	mu       sync.Mutex
	log      []string
	known    identity.IdentityMap // what the policy maps hold
	kernel   map[netip.Prefix]ipcachemap.Entry
	touched  map[netip.Prefix]int // writes per prefix
	told     map[netip.Addr][2]identity.NumericIdentity
	faults   map[string]int // calls of this name that fail yet
	broken   []string       // violations of the order
	room     int            // places in the kernel's map
	look     func()         // is called after every single change of the kernel's map
	identity *cache.Cache
}

func (f *fakes) say(call, format string, args ...any) error {
	fail := f.faults[call] > 0
	text := strings.TrimSpace(call + " " + fmt.Sprintf(format, args...))
	if fail {
		f.faults[call]--
		text += " FAILS"
	}
	f.log = append(f.log, text)
	if fail {
		return fmt.Errorf("%s: %w", call, errFault)
	}
	return nil
}

func (f *fakes) UpdateIdentities(_ context.Context, added, removed identity.IdentityMap) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(added) > 0 && len(removed) > 0 {
		f.broken = append(f.broken, "added and removed in one call")
	}
	call, m := "add", added
	if len(removed) > 0 {
		call, m = "remove", removed
	}
	if err := f.say(call, "%s", names(m)); err != nil {
		return err
	}
	for id, a := range added {
		if old, ok := f.known[id]; ok && !old.Equal(a) {
			f.broken = append(f.broken, fmt.Sprintf("identity %d was %s and is announced as %s", id, old, a))
		}
		f.known[id] = a
	}
	for id := range removed {
		for p, e := range f.kernel {
			if e.Identity == uint32(id) || e.PrefixIdentity == uint32(id) {
				f.broken = append(f.broken, fmt.Sprintf("identity %d leaves the policy while %s has it", id, p))
			}
		}
		delete(f.known, id)
	}
	return nil
}

func (f *fakes) IPCacheChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.say("changed", "")
}

func (f *fakes) Room() int { return f.room }

func (f *fakes) Write(ps []netip.Prefix, entries []ipcachemap.Entry) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.say("upsert", "%s", prefixes(slices.Values(ps)))
	for i, p := range ps {
		e := entries[i]
		for _, id := range []uint32{e.Identity, e.PrefixIdentity} {
			n := identity.NumericIdentity(id)
			if _, ok := f.known[n]; n != 0 && !n.IsReserved() && !ok {
				f.broken = append(f.broken, fmt.Sprintf("%s gets identity %d before the policy knows it", p, n))
			}
		}
		f.touched[p]++
		if err != nil && i >= len(ps)/2 { // a failed batch is written in part
			break
		}
		if _, ok := f.kernel[p]; !ok && len(f.kernel) == f.room {
			f.broken = append(f.broken, fmt.Sprintf("%s is written into a full map", p))
			return ipcachemap.ErrFull
		}
		f.kernel[p] = e
		f.look()
	}
	return err
}

func (f *fakes) Delete(ps ...netip.Prefix) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.say("delete", "%s", prefixes(slices.Values(ps)))
	for i, p := range ps {
		if err != nil && i >= len(ps)/2 {
			break
		}
		delete(f.kernel, p)
		f.look()
	}
	return err
}

func (f *fakes) Dump() (map[netip.Prefix]ipcachemap.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.kernel), f.say("dump", "")
}

func (f *fakes) onAddress(a netip.Addr, id, prefix identity.NumericIdentity) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.say("tell", "%s", a)
	f.told[a] = [2]identity.NumericIdentity{id, prefix}
}

func names(m identity.IdentityMap) string {
	var out []string
	for _, a := range m {
		out = append(out, a.Key())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func prefixes(seq func(func(netip.Prefix) bool)) string {
	return strings.Trim(fmt.Sprint(slices.SortedFunc(seq, netip.Prefix.Compare)), "[]")
}

// dialogue returns what was said since the last call.
func (f *fakes) dialogue() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.log
	f.log = nil
	return out
}

// at is what the kernel finds for an address: the longest match.
func (f *fakes) at(addr string) (e ipcachemap.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a, best := netip.MustParseAddr(addr), -1
	for p, v := range f.kernel {
		if p.Contains(a) && p.Bits() > best {
			e, best = v, p.Bits()
		}
	}
	return e
}

func (f *fakes) number(t require.TestingT, texts ...string) uint32 {
	a, err := labels.ParseArray(texts...)
	require.NoError(t, err)
	id, ok := f.identity.LookupByLabels(a)
	require.True(t, ok, "%v has a number", texts)
	return uint32(id.ID)
}

type cleaner interface {
	require.TestingT
	Cleanup(func())
}

// start makes a running cache over fakes; the order is checked at the end.
func start(t cleaner, change ...func(*Config)) (*IPCache, *fakes) {
	ids, err := cache.New(cache.Config{Rest: -1})
	require.NoError(t, err)
	f := &fakes{room: 100000, look: func() {}, known: identity.IdentityMap{}, kernel: map[netip.Prefix]ipcachemap.Entry{}, touched: map[netip.Prefix]int{},
		told: map[netip.Addr][2]identity.NumericIdentity{}, faults: map[string]int{}, identity: ids}
	c := f.restart(t, change...)
	return c, f
}

// restart runs a new cache over what is in the kernel.
func (f *fakes) restart(t cleaner, change ...func(*Config)) *IPCache {
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Identities: f.identity, Policy: f, Kernel: f, OnAddress: f.onAddress,
		RetryMin: time.Microsecond, RetryMax: time.Millisecond}
	for _, ch := range change {
		ch(&cfg)
	}
	c := New(cfg)
	t.Cleanup(func() {
		c.Stop()
		require.Empty(t, f.broken)
	})
	return c
}

// sync1 waits until all is in the kernel.
func sync1(t require.TestingT, c *IPCache) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, c.WaitSynced(ctx))
}

func run(t require.TestingT, c *IPCache) {
	require.NoError(t, c.Start(context.Background()))
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func pod(name string) Metadata {
	return Metadata{Labels: labels.NewLabelArray(labels.Label{Source: "k8s", Key: "app", Value: name})}
}

// setPolicyPrefixes makes the prefixes that the policies name these and no others.
func (c *IPCache) setPolicyPrefixes(want map[netip.Prefix]bool) {
	var gone []netip.Prefix
	c.mu.Lock()
	c.prefixes.all(func(p netip.Prefix, _ bool) {
		if _, ok := want[p]; !ok {
			gone = append(gone, p)
		}
	})
	c.mu.Unlock()
	c.ChangePolicyPrefixes(want, append(gone, pfx("192.0.2.0/24"))) // the last is nobody's
}

// usersOf are the prefixes that have an identity, as who or as where.
func (c *IPCache) usersOf(id identity.NumericIdentity) []netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []netip.Prefix
	c.realized.all(func(p netip.Prefix, r *realized) {
		if r.in && (r.kernel.Identity == uint32(id) || r.kernel.PrefixIdentity == uint32(id)) {
			out = append(out, p)
		}
	})
	return out
}
