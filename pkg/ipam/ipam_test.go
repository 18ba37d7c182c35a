package ipam

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/atomicfile"
)

var bg = context.Background()

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func pools() map[string]PoolConfig {
	return map[string]PoolConfig{
		"default": {V4: netip.MustParsePrefix("10.0.0.0/29"), V6: netip.MustParsePrefix("fd00::/64")},
		"small6":  {V4: netip.MustParsePrefix("10.1.0.0/24"), V6: netip.MustParsePrefix("fd01::/126"), Gateway4: addr("10.1.0.254")},
		"four":    {V4: netip.MustParsePrefix("10.2.0.0/24")},
	}
}

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func open(t require.TestingT, cfg Config) *IPAM {
	if cfg.Pools == nil {
		cfg.Pools = pools()
	}
	m, err := New(cfg)
	require.NoError(t, err)
	return m
}

func lease(t require.TestingT, m *IPAM, r Request) Lease {
	l, err := m.Allocate(bg, r)
	require.NoError(t, err)
	return l
}

func TestLeaseHasBothFamiliesAndTheirGateways(t *testing.T) {
	m := open(t, Config{})
	l := lease(t, m, Request{Owner: "c1:eth0", Pod: "ns/a"})
	require.Equal(t, []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}, l.Addrs())
	require.Equal(t, addr("10.0.0.1"), l.Gateway4)
	require.Equal(t, addr("fd00::1"), l.Gateway6)
	require.Zero(t, l.Expires)
	l = lease(t, m, Request{Owner: "c2:eth0", IPv6: true})
	require.Equal(t, []netip.Addr{addr("fd00::3")}, l.Addrs())
	require.False(t, l.Gateway4.IsValid())
	l = lease(t, m, Request{Owner: "c3:eth0", Pool: "small6"})
	require.Equal(t, addr("10.1.0.254"), l.Gateway4)
	l = lease(t, m, Request{Owner: "c4:eth0", Pool: "four"})
	require.Equal(t, []netip.Addr{addr("10.2.0.2")}, l.Addrs())
	require.Equal(t, []PoolStatus{
		{"default", netip.MustParsePrefix("10.0.0.0/29"), netip.MustParsePrefix("fd00::/64"), 1, 5, 2, 1<<64 - 2},
		{"four", netip.MustParsePrefix("10.2.0.0/24"), netip.Prefix{}, 1, 253, 0, 0},
		{"small6", netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/126"), 1, 253, 1, 2},
	}, m.Pools())
}

func TestFamiliesAreTakenAndGivenBackTogether(t *testing.T) {
	m := open(t, Config{})
	for i := range 2 {
		lease(t, m, Request{Owner: fmt.Sprint(i), Pool: "small6"})
	}
	before := m.Pools()
	_, err := m.Allocate(bg, Request{Owner: "x", Pool: "small6"})
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorContains(t, err, "pool small6 exhausted: 2 of 2")
	require.Equal(t, before, m.Pools(), "the IPv4 address was given back")
	require.Len(t, m.Leases(), 2)

	done, err := m.Release(addr("fd01::2"), "")
	require.NoError(t, err)
	require.True(t, done)
	require.EqualValues(t, 1, m.Pools()[2].Used4)
	done, err = m.Release(addr("10.1.0.1"), "")
	require.NoError(t, err)
	require.False(t, done, "both families went together")
	done, err = m.ReleaseOwner("1")
	require.NoError(t, err)
	require.True(t, done)
	done, err = m.ReleaseOwner("1")
	require.NoError(t, err)
	require.False(t, done)
	require.Empty(t, m.Leases())
}

func TestRequestedAddresses(t *testing.T) {
	m := open(t, Config{})
	l := lease(t, m, Request{Owner: "a", Requested: []netip.Addr{addr("fd00::77"), addr("10.0.0.5")}})
	require.Equal(t, []netip.Addr{addr("10.0.0.5"), addr("fd00::77")}, l.Addrs())
	l = lease(t, m, Request{Owner: "b", Requested: []netip.Addr{addr("10.0.0.3")}})
	require.Equal(t, addr("10.0.0.3"), l.IPv4)
	require.True(t, l.IPv6.IsValid(), "the other family as the pool has it")

	before := m.Pools()
	for _, c := range []struct {
		name string
		r    Request
		is   error
		text string
	}{
		{"in use", Request{Requested: []netip.Addr{addr("10.0.0.5")}}, ErrInUse, "10.0.0.5 in use by a"},
		{"second family in use", Request{Requested: []netip.Addr{addr("10.0.0.4"), addr("fd00::77")}}, ErrInUse, "fd00::77 in use by a"},
		{"gateway", Request{Requested: []netip.Addr{addr("10.0.0.1")}}, ErrNotInPool, "not in pool default"},
		{"another pool's", Request{Requested: []netip.Addr{addr("10.1.0.9")}}, ErrNotInPool, "not in pool default"},
		{"family the pool lacks", Request{Pool: "four", Requested: []netip.Addr{addr("fd00::9")}}, ErrNotInPool, "no prefix of that family"},
		{"two of a family", Request{Requested: []netip.Addr{addr("10.0.0.4"), addr("10.0.0.6")}}, nil, "ask for one"},
		{"unknown pool", Request{Pool: "nope"}, ErrUnknownPool, "configured pools: default, four, small6"},
		{"family without a prefix", Request{Pool: "four", IPv6: true}, nil, "has no IPv6 prefix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.r.Owner = "z"
			_, err := m.Allocate(bg, c.r)
			require.ErrorContains(t, err, c.text)
			require.ErrorContains(t, err, "lease addresses for z")
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			require.Equal(t, before, m.Pools(), "nothing is left taken")
		})
	}
	_, err := m.Allocate(bg, Request{})
	require.ErrorContains(t, err, "owner is empty")
}

func TestSameOwnerGetsItsLeaseAgain(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	m := open(t, Config{Now: c.now})
	one := lease(t, m, Request{Owner: "a", Expiration: true})
	c.t = c.t.Add(time.Minute)
	two := lease(t, m, Request{Owner: "a", Expiration: true})
	require.Equal(t, one.ID, two.ID)
	require.Equal(t, one.Addrs(), two.Addrs())
	require.Equal(t, one.Expires.Add(time.Minute), two.Expires, "a new term")
	require.Len(t, m.Leases(), 1)
	require.NoError(t, m.Confirm(one.ID))
	require.Zero(t, lease(t, m, Request{Owner: "a", Expiration: true}).Expires, "a confirmed lease stays confirmed")

	for _, r := range []Request{{Pool: "four"}, {IPv4: true}, {Requested: []netip.Addr{addr("10.0.0.6")}}} {
		r.Owner = "a"
		_, err := m.Allocate(bg, r)
		require.ErrorIs(t, err, ErrConflict)
		require.ErrorContains(t, err, "release it first")
	}
}

func TestLeaseOfAnAddThatNeverFinishedExpires(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	cfg := Config{Now: c.now, StateDir: t.TempDir()}
	m := open(t, cfg)
	lost := lease(t, m, Request{Owner: "lost", Expiration: true})
	kept := lease(t, m, Request{Owner: "kept", Expiration: true})
	require.NoError(t, m.Confirm(kept.ID))
	c.t = c.t.Add(DefaultExpiration - time.Nanosecond)
	gone, err := m.Expire()
	require.NoError(t, err)
	require.Empty(t, gone)
	m = open(t, cfg) // the term survives a restart
	c.t = c.t.Add(time.Nanosecond)
	gone, err = m.Expire()
	require.NoError(t, err)
	require.Len(t, gone, 1)
	require.Equal(t, lost.ID, gone[0].ID)
	require.ErrorIs(t, m.Confirm(lost.ID), ErrUnknownLease)
	require.Len(t, open(t, cfg).Leases(), 1)
	require.NotEqual(t, lost.IPv4, lease(t, m, Request{Owner: "next"}).IPv4, "as late as possible")
}

func TestExhaustedPoolServesAgainOnceALeaseExpired(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	m := open(t, Config{Now: c.now})
	for i := range 5 {
		lease(t, m, Request{Owner: fmt.Sprint(i), Expiration: true})
	}
	_, err := m.Allocate(bg, Request{Owner: "x"})
	require.ErrorContains(t, err, "pool default exhausted: 5 of 5")
	c.t = c.t.Add(DefaultExpiration)
	lease(t, m, Request{Owner: "x"})
	require.Len(t, m.Leases(), 1)
}

func TestReleaseWithALeaseIDSparesTheNextOwner(t *testing.T) {
	m := open(t, Config{})
	old := lease(t, m, Request{Owner: "old", Requested: []netip.Addr{addr("10.0.0.4")}})
	_, err := m.ReleaseOwner("old")
	require.NoError(t, err)
	lease(t, m, Request{Owner: "new", Requested: []netip.Addr{addr("10.0.0.4")}})
	done, err := m.Release(addr("10.0.0.4"), old.ID)
	require.NoError(t, err)
	require.False(t, done)
	require.Len(t, m.Leases(), 1)
}

func TestKilledAgentKeepsLeases(t *testing.T) {
	cfg := Config{StateDir: t.TempDir()}
	m := open(t, cfg)
	a := lease(t, m, Request{Owner: "a", Pod: "ns/a"})
	b := lease(t, m, Request{Owner: "b"})
	_, err := m.ReleaseOwner("b")
	require.NoError(t, err)
	m = open(t, cfg)
	require.Equal(t, []Lease{a}, m.Leases())
	next := lease(t, m, Request{Owner: "c"})
	require.NotEqual(t, b.IPv4, next.IPv4, "the search goes on where it was")
	got, err := m.Restore("a", "ns/a", a.Addrs()...)
	require.NoError(t, err)
	require.Equal(t, a, got)
}

func TestRestoreClaimsAddressesWithoutAFile(t *testing.T) {
	cfg := Config{StateDir: t.TempDir()}
	m := open(t, cfg)
	l, err := m.Restore("a", "ns/a", addr("fd01::2"), addr("::ffff:10.1.0.7"))
	require.NoError(t, err)
	require.Equal(t, "small6", l.Pool)
	require.Equal(t, []netip.Addr{addr("10.1.0.7"), addr("fd01::2")}, l.Addrs())
	require.Equal(t, addr("10.1.0.254"), l.Gateway4)
	_, err = m.Restore("b", "", addr("10.1.0.7"))
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "by a")
	_, err = m.Restore("b", "", addr("192.0.2.1"))
	require.ErrorIs(t, err, ErrNotInPool)
	_, err = m.Restore("b", "")
	require.ErrorContains(t, err, "no addresses")

	pending := lease(t, m, Request{Owner: "p", Expiration: true})
	l, err = m.Restore("p", "", pending.Addrs()...)
	require.NoError(t, err)
	require.Zero(t, l.Expires, "an endpoint has it")
	l, err = m.Restore("p", "", addr("10.0.0.6"))
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{addr("10.0.0.6")}, l.Addrs(), "the endpoint's record is right")
	require.Len(t, open(t, cfg).Leases(), 2)
}

func TestDamagedFileIsMovedAside(t *testing.T) {
	for _, text := range []string{`{"version":1,"next":{},"leases":[{"id"`, `{"version":2,"next":{},"leases":[]}`, `{"leases":[]}`, `{"version":1,"next":{},"leases":7}`, "null"} {
		dir := t.TempDir()
		path := filepath.Join(dir, FileName)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		var out bytes.Buffer
		m := open(t, Config{StateDir: dir, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		require.Contains(t, out.String(), "claim their addresses again")
		aside, err := atomicfile.ListAside(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, aside, 1)
		kept, err := os.ReadFile(aside[0].Path)
		require.NoError(t, err)
		require.Equal(t, text, string(kept))
		lease(t, m, Request{Owner: "a"})
		require.Len(t, open(t, Config{StateDir: dir}).Leases(), 1)
	}
}

func TestFileIsReadRecordByRecordAndUnknownMembersStay(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	require.NoError(t, os.WriteFile(path, []byte(`{"version":1,"colour":"red","next":{"default":{"ipv4":"10.0.0.6"},"old":{}},"leases":[
		{"id":"1","owner":"a","pool":"default","ipv4":"10.0.0.2","ipv6":""},
		{"id":"2","owner":"a","pool":"default","ipv4":"10.0.0.3","ipv6":""},
		{"id":"3","owner":"b","pool":"default","ipv4":"10.0.0.2","ipv6":"fd00::5"},
		{"id":"4","owner":"c","pool":"gone","ipv4":"172.16.0.9","ipv6":""},
		{"id":"5","owner":"d","pool":"default","ipv4":"","ipv6":""}]}`), 0o600))
	var out bytes.Buffer
	m := open(t, Config{StateDir: dir, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	require.Equal(t, 3, bytes.Count(out.Bytes(), []byte("left out")), out.String())
	require.Contains(t, out.String(), "its owner keeps the address")
	require.Len(t, m.Leases(), 2)
	require.Equal(t, addr("10.0.0.6"), lease(t, m, Request{Owner: "e"}).IPv4)
	done, err := m.Release(addr("172.16.0.9"), "")
	require.NoError(t, err)
	require.True(t, done)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, "red", got["colour"])
}

func TestWhatCannotBeWrittenIsUndone(t *testing.T) {
	m := open(t, Config{StateDir: t.TempDir()})
	old := lease(t, m, Request{Owner: "old", Expiration: true})
	full := errors.New("no space left on device")
	m.file.write = func(string, []byte) error { return full }
	before := m.Pools()
	_, err := m.Allocate(bg, Request{Owner: "a"})
	require.ErrorIs(t, err, full)
	require.ErrorContains(t, err, "free space")
	require.Equal(t, before, m.Pools())
	require.ErrorIs(t, m.Confirm(old.ID), full)
	_, err = m.Allocate(bg, Request{Owner: "old"})
	require.ErrorIs(t, err, full)
	require.Equal(t, []Lease{old}, m.Leases(), "its term goes on")
	done, err := m.ReleaseOwner("old")
	require.True(t, done, "what is released is free at once")
	require.ErrorIs(t, err, full)
	require.Empty(t, m.Leases())
}

func TestRefusedConfigurations(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		why  string
	}{
		{"no pools", Config{}, "default pool default is not configured"},
		{"pool without a prefix", Config{Pools: map[string]PoolConfig{"default": {}}}, "has no prefix"},
		{"wrong family", Config{Pools: map[string]PoolConfig{"default": {V4: netip.MustParsePrefix("fd00::/64")}}}, "wrong family"},
		{"overlap", Config{Pools: map[string]PoolConfig{"default": {V4: netip.MustParsePrefix("10.0.0.0/8")}, "b": {V4: netip.MustParsePrefix("10.1.0.0/16")}}}, "overlaps"},
		{"host bits", Config{Pools: map[string]PoolConfig{"default": {V4: netip.MustParsePrefix("10.0.0.1/8")}}}, "write 10.0.0.0/8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.cfg)
			require.ErrorContains(t, err, c.why)
		})
	}
}

func TestManyOwnersAtOnceNeverShareAnAddress(t *testing.T) {
	m := open(t, Config{StateDir: t.TempDir(), Pools: map[string]PoolConfig{"default": {V4: netip.MustParsePrefix("10.0.0.0/26"), V6: netip.MustParsePrefix("fd00::/122")}}})
	var mu sync.Mutex
	using := map[netip.Addr]string{}
	var wg sync.WaitGroup
	errs := make(chan error, 1000)
	for i := range 12 {
		wg.Go(func() {
			for n := range 40 {
				owner := fmt.Sprintf("%d/%d", i, n)
				l, err := m.Allocate(bg, Request{Owner: owner})
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				for _, a := range l.Addrs() {
					if other, ok := using[a]; ok {
						errs <- fmt.Errorf("%s has %s and so has %s", owner, a, other)
					}
					using[a] = owner
				}
				mu.Unlock()
				mu.Lock()
				for _, a := range l.Addrs() {
					delete(using, a)
				}
				mu.Unlock()
				if _, err := m.Release(l.IPv6, l.ID); err != nil {
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
	require.Empty(t, m.Leases())
	require.Zero(t, m.Pools()[0].Used4)
	require.Zero(t, m.Pools()[0].Used6)
}

// Any history, with restarts at any point, leaves the pools exactly as full as
// the leases say, and every confirmed lease with its owner.
func TestAnyHistoryKeepsLeasesAndPoolsInStep(t *testing.T) {
	dir, run := t.TempDir(), 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		c := &clock{time.Unix(1000, 0)}
		cfg := Config{StateDir: filepath.Join(dir, fmt.Sprint(run)), Now: c.now}
		m := open(t, cfg)
		want := map[string]Lease{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			owner := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"}).Draw(t, "owner")
			switch rapid.SampledFrom([]string{"take", "take", "give", "confirm", "restart", "wait"}).Draw(t, "step") {
			case "take":
				l, err := m.Allocate(bg, Request{Owner: owner, Expiration: true})
				if err == nil {
					want[owner] = l
				} else {
					require.ErrorIs(t, err, ErrExhausted)
				}
			case "give":
				done, err := m.ReleaseOwner(owner)
				require.NoError(t, err)
				_, had := want[owner]
				require.Equal(t, had, done)
				delete(want, owner)
			case "confirm":
				if l, ok := want[owner]; ok {
					require.NoError(t, m.Confirm(l.ID))
					l.Expires = time.Time{}
					want[owner] = l
				}
			case "restart":
				m = open(t, cfg)
			case "wait":
				c.t = c.t.Add(DefaultExpiration)
				_, err := m.Expire()
				require.NoError(t, err)
				for o, l := range want {
					if !l.Expires.IsZero() {
						delete(want, o)
					}
				}
			}
			got := map[string]Lease{}
			for _, l := range m.Leases() {
				l.Expires = l.Expires.UTC()
				got[l.Owner] = l
			}
			require.Len(t, got, len(want))
			for o, l := range want {
				l.Expires = l.Expires.UTC()
				require.Equal(t, l, got[o])
			}
			s := m.Pools()[0]
			require.EqualValues(t, len(want), s.Used4)
			require.EqualValues(t, len(want), s.Used6)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"next":{"default":{"ipv4":"10.0.0.6"}},"leases":[{"id":"1","owner":"a","pool":"default","ipv4":"10.0.0.2","ipv6":""}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		m, err := New(Config{Pools: pools()})
		if err != nil {
			t.Fatal(err)
		}
		m.file = &file{path: "x"}
		for _, r := range c.leases {
			m.adopt(r)
		}
		seen := map[netip.Addr]bool{}
		for _, l := range m.Leases() {
			for _, a := range l.Addrs() {
				if seen[a] {
					t.Fatalf("%s twice", a)
				}
				seen[a] = true
			}
		}
	})
}
