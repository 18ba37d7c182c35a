package ipcache

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
)

// An address with a number that nobody has, and others that come after it.
func TestN27APrefixThatFailsWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := start(t)
		c.cfg.RetryMin, c.cfg.RetryMax = time.Minute, time.Hour
		run(t, c)
		defer c.Stop()
		lost := identity.NumericIdentity(4711)
		c.Publish(netip.MustParseAddr("10.0.0.9"), "endpoint/9", lost)
		synctest.Wait()
		require.ErrorContains(t, c.Problem(), "10.0.0.9")
		require.Equal(t, closed.Identity, f.at("10.0.0.9").Identity, "it is closed meanwhile")
		for i := range 5 {
			began := time.Now()
			name := fmt.Sprint("p", i)
			c.UpsertMetadata(pfx(fmt.Sprintf("10.0.0.%d/32", 20+i)), SourceKubernetes, "pod/"+name, pod(name))
			require.NoError(t, c.WaitSynced(bg))
			require.Zero(t, time.Since(began), "change %d waited for the prefix that fails", i)
			require.Equal(t, f.number(t, "k8s:app="+name), f.at(fmt.Sprintf("10.0.0.%d", 20+i)).Identity)
			require.Error(t, c.Problem(), "it is still told")
			require.False(t, c.Synced())
		}
		f.dialogue()
		c.Publish(netip.MustParseAddr("10.0.0.9"), "endpoint/9", identity.NumericIdentity(f.number(t, "k8s:app=p0")))
		require.NoError(t, c.WaitSynced(bg))
		require.NoError(t, c.Problem())
		require.Equal(t, f.number(t, "k8s:app=p0"), f.at("10.0.0.9").Identity)
	})
}

// While the kernel refuses what is written, a later change does not wait for the next attempt.
func TestN27AChangeAfterARefusalIsTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := start(t)
		c.cfg.RetryMin, c.cfg.RetryMax = time.Hour, time.Hour
		run(t, c)
		defer c.Stop()
		f.faults["upsert"] = 1
		c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
		synctest.Wait()
		require.ErrorIs(t, c.Problem(), errFault)
		c.UpsertMetadata(pfx("10.0.0.2/32"), SourceKubernetes, "pod/b", pod("b"))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		require.NoError(t, c.WaitSynced(ctx))
		require.Equal(t, f.number(t, "k8s:app=a"), f.at("10.0.0.1").Identity)
		require.Equal(t, f.number(t, "k8s:app=b"), f.at("10.0.0.2").Identity)
	})
}

// A number that cannot be had now is had later, without another change.
func TestN27TheLateOneIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := start(t)
		ids, err := cache.New(cache.Config{Rest: -1, Min: 300, Max: 300})
		require.NoError(t, err)
		f.identity, c.cfg.Identities = ids, ids
		run(t, c)
		defer c.Stop()
		c.UpsertMetadata(pfx("10.0.0.1/32"), SourceKubernetes, "pod/a", pod("a"))
		require.NoError(t, c.WaitSynced(bg))
		c.UpsertMetadata(pfx("10.0.0.2/32"), SourceKubernetes, "pod/b", pod("b"))
		synctest.Wait()
		require.ErrorIs(t, c.Problem(), cache.ErrExhausted)
		time.Sleep(time.Minute)
		require.Equal(t, closed.Identity, f.at("10.0.0.2").Identity)
		c.RemoveMetadata(pfx("10.0.0.1/32"), "pod/a")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, f.number(t, "k8s:app=b"), f.at("10.0.0.2").Identity)
		require.True(t, c.Synced())
	})
}
