package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

var ctx = context.Background()

func app(name string) labels.LabelArray {
	return labels.NewLabelArray(labels.Label{Source: "k8s", Key: "app", Value: name})
}

func set(t require.TestingT, texts ...string) labels.LabelArray {
	a, err := labels.ParseArray(texts...)
	require.NoError(t, err)
	return a
}

func open(t require.TestingT, cfg Config) *Cache {
	c, err := New(cfg)
	require.NoError(t, err)
	return c
}

func take(t require.TestingT, c *Cache, a labels.LabelArray) identity.NumericIdentity {
	id, _, err := c.Allocate(ctx, a)
	require.NoError(t, err)
	return id.ID
}

func TestOneNumberPerSet(t *testing.T) {
	c := open(t, Config{})
	a, isNew, err := c.Allocate(ctx, app("a"))
	require.NoError(t, err)
	require.True(t, isNew)
	require.Equal(t, identity.MinimalNumericIdentity, a.ID)
	require.Equal(t, 1, a.ReferenceCount)
	require.Equal(t, "a", a.Labels["app"].Value)

	again, isNew, err := c.Allocate(ctx, app("a"))
	require.NoError(t, err)
	require.False(t, isNew)
	require.Equal(t, a.ID, again.ID)
	require.Equal(t, 2, again.ReferenceCount)
	require.NotEqual(t, a.ID, take(t, c, app("b")))

	gone, err := c.Release(ctx, a.ID)
	require.NoError(t, err)
	require.False(t, gone, "it has another user")
	gone, err = c.Release(ctx, a.ID)
	require.NoError(t, err)
	require.True(t, gone)
	_, err = c.Release(ctx, a.ID)
	require.ErrorContains(t, err, "has no users")
	_, ok := c.LookupByID(a.ID)
	require.False(t, ok)
	_, ok = c.LookupByLabels(app("a"))
	require.False(t, ok)
	b, ok := c.LookupByLabels(app("b"))
	require.True(t, ok)
	require.Equal(t, b.LabelArray, c.Snapshot()[b.ID])
	require.Len(t, c.Snapshot(), len(identity.ReservedIdentities())+1)
	require.Len(t, c.List(), len(identity.ReservedIdentities())+1)
}

func TestScopes(t *testing.T) {
	c := open(t, Config{})
	require.Equal(t, identity.ScopeLocal, take(t, c, set(t, "cidr:10.0.0.0/8", "reserved:world-ipv4")).Scope())
	require.Equal(t, identity.ScopeLocal, take(t, c, set(t, "cidr:10.0.0.0/8")).Scope(), "the prefix of a pod is another set")
	require.Equal(t, identity.ScopeGlobal, take(t, c, app("a")).Scope())
	require.Len(t, c.Snapshot(), len(identity.ReservedIdentities())+3)
}

func TestReservedSetsHaveFixedNumbersAndNoUsers(t *testing.T) {
	c := open(t, Config{})
	id, isNew, err := c.Allocate(ctx, set(t, "reserved:host", "node:zone=a"))
	require.NoError(t, err)
	require.False(t, isNew)
	require.Equal(t, identity.ReservedHost, id.ID)
	gone, err := c.Release(ctx, identity.ReservedHost)
	require.NoError(t, err)
	require.False(t, gone)
	w, ok := c.LookupByLabels(set(t, "reserved:world"))
	require.True(t, ok)
	require.Equal(t, identity.ReservedWorld, w.ID)
	h, ok := c.LookupByID(1)
	require.True(t, ok)
	require.True(t, h.LabelArray.HasReserved("host"))
}

// G01: a set that reached the allocator with a reserved label beside a pod's own.
func TestReservedLabelBesideOrdinaryOnesIsRefused(t *testing.T) {
	c := open(t, Config{})
	for _, bad := range []labels.LabelArray{set(t, "reserved:world", "k8s:app=x"), set(t, "reserved:init", "k8s:app=x"), nil} {
		_, _, err := c.Allocate(ctx, bad)
		require.Error(t, err)
	}
	require.Len(t, c.Snapshot(), len(identity.ReservedIdentities()))
}

func TestManyGoroutinesAgreeOnOneNumberPerSet(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir(), Rest: -1})
	const sets, workers, rounds = 8, 16, 60
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for range workers {
		wg.Go(func() {
			for range rounds {
				name := fmt.Sprint(rand.IntN(sets))
				id, _, err := c.Allocate(ctx, app(name))
				if err != nil {
					errs <- err
					return
				}
				if now, ok := c.LookupByID(id.ID); !ok || now.Labels["app"].Value != name {
					errs <- fmt.Errorf("number %d of app=%s is now %v", id.ID, name, now)
				}
				if other, ok := c.LookupByLabels(app(name)); !ok || other.ID != id.ID {
					errs <- fmt.Errorf("app=%s has the numbers %d and %v", name, id.ID, other)
				}
				if _, err := c.Release(ctx, id.ID); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, c.Snapshot(), len(identity.ReservedIdentities()), "every reference was given back")
}

func TestExhaustionIsAnErrorAndNeverReuse(t *testing.T) {
	now := time.Unix(0, 0)
	c := open(t, Config{Min: 256, Max: 258, Busy: []identity.NumericIdentity{257}, Now: func() time.Time { return now }})
	a, b := take(t, c, app("a")), take(t, c, app("b"))
	require.Equal(t, []identity.NumericIdentity{256, 258}, []identity.NumericIdentity{a, b}, "a busy number is skipped")
	_, _, err := c.Allocate(ctx, app("c"))
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorContains(t, err, "all 3 from 256 to 258")
	require.ErrorContains(t, err, "label filter")
	require.Equal(t, a, take(t, c, app("a")), "sets that have a number still get it")

	_, err = c.Release(ctx, b)
	require.NoError(t, err)
	_, _, err = c.Allocate(ctx, app("c"))
	require.ErrorIs(t, err, ErrExhausted, "a number just released rests")
	now = now.Add(DefaultRest)
	require.Equal(t, b, take(t, c, app("c")))
}

func TestNumbersGoRound(t *testing.T) {
	c := open(t, Config{Min: 256, Max: 260, Rest: -1})
	for _, want := range []identity.NumericIdentity{256, 257, 258, 259, 260, 256} {
		id := take(t, c, app("a"))
		require.Equal(t, want, id)
		_, err := c.Release(ctx, id)
		require.NoError(t, err)
	}
}

func TestBatchFailsSetBySet(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir(), Min: 256, Max: 256})
	rs := c.AllocateAll(ctx, []labels.LabelArray{app("a"), app("b"), app("a")})
	require.NoError(t, rs[0].Err)
	require.True(t, rs[0].IsNew)
	require.ErrorIs(t, rs[1].Err, ErrExhausted)
	require.NoError(t, rs[2].Err)
	require.False(t, rs[2].IsNew)
	require.Equal(t, 2, rs[2].Identity.ReferenceCount)
}

// Any sequence of steps, restarts included, against a plain model: live sets
// have one number each, no two share one, and numbers survive restarts.
func TestAnySequenceKeepsTheRules(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		cfg := Config{Dir: fmt.Sprintf("%s/%d", dir, run), Min: 256, Max: 261, Rest: -1}
		c := open(t, cfg)
		refs, numbers := map[string]int{}, map[string]identity.NumericIdentity{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"}).Draw(t, "set")
			switch rapid.SampledFrom([]string{"take", "take", "give", "kill"}).Draw(t, "step") {
			case "take":
				id, isNew, err := c.Allocate(ctx, app(name))
				if err != nil {
					require.ErrorIs(t, err, ErrExhausted)
					require.Zero(t, refs[name])
					continue
				}
				require.Equal(t, refs[name] == 0, isNew)
				if refs[name] > 0 {
					require.Equal(t, numbers[name], id.ID)
				}
				for other, n := range refs {
					require.False(t, n > 0 && other != name && numbers[other] == id.ID, "%s and %s share %d", name, other, id.ID)
				}
				refs[name]++
				numbers[name] = id.ID
			case "give":
				if refs[name] > 0 {
					refs[name]--
					gone, err := c.Release(ctx, numbers[name])
					require.NoError(t, err)
					require.Equal(t, refs[name] == 0, gone)
				}
			case "kill": // no Sync: the process is killed, then everybody who lived comes back
				c = open(t, cfg)
				for other, n := range refs {
					for range n {
						require.Equal(t, numbers[other], take(t, c, app(other)), "the same number after a restart")
					}
				}
				c.ReleaseRestored()
			}
		}
	})
}
