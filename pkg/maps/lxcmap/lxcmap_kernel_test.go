package lxcmap

import (
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	testutils.SameStructs(t, map[string]any{"endpoint_key": key{}, "endpoint_info": info{}, "endpoint_config": config{}})
}

func TestTheMapIsTheOneOfC(t *testing.T) {
	testutils.SameMap(t, spec())
	testutils.SameMap(t, configSpec())
}

func TestAnEndpointIsFoundByBothAddresses(t *testing.T) {
	root := openRoot(t, testutils.Kernel(t))
	m, err := OpenOrCreate(root)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	v4, v6 := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("fd00::7")
	want := Info{
		IfIndex: 12, Identity: 1000, PrefixIdentity: 1 << 24, ID: 77,
		MAC: types.MAC{2, 0, 0, 0, 0, 1}, NodeMAC: types.MAC{2, 0, 0, 0, 0, 2},
	}
	for _, a := range []netip.Addr{v4, v6} {
		if err := m.Put(a, want); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Put(netip.Addr{}, want); err == nil {
		t.Error("no address was taken")
	}
	mem, err := m.MemoryBytes()
	if err != nil || mem <= 16*MaxEntries {
		t.Errorf("memory %d, %v", mem, err)
	}
	m.Close()

	m, err = Open(root) // a restarted agent
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, a := range []netip.Addr{v4, v6, netip.AddrFrom16(v4.As16())} {
		if got, found, err := m.Get(a); err != nil || !found || got != want {
			t.Errorf("%s: got %+v, %v, %v", a, got, found, err)
		}
	}
	all, err := m.Dump()
	if err != nil || len(all) != 2 || all[v4] != want || all[v6] != want {
		t.Errorf("dump: %v, %v", all, err)
	}
	for range 2 { // the second time it is gone already
		if err := m.Delete(v4); err != nil {
			t.Error(err)
		}
	}
	if _, found, err := m.Get(v4); found || err != nil {
		t.Errorf("deleted, but found=%v err=%v", found, err)
	}
}

func TestTheKernelSeesOnePolicyWord(t *testing.T) {
	c, _ := newTestConfig(t)
	defer c.Close()
	r := c.NextRevision()
	if err := c.SetPolicy(5, 17, r); err != nil {
		t.Fatal(err)
	}
	var raw config
	if err := c.m.Lookup(uint32(5), &raw); err != nil || raw.Policy != uint64(r)<<32|17 {
		t.Fatalf("the kernel has %#x, %v", raw.Policy, err)
	}
	raw.FirstPacket = 12345
	if err := c.m.Put(uint32(5), &raw); err != nil {
		t.Fatal(err)
	}
	if at, err := c.FirstPacket(5); err != nil || at != 12345 {
		t.Errorf("first packet at %d, %v", at, err)
	}
	slot, rev, err := c.Policy(5)
	if err != nil || slot != 17 || rev != r {
		t.Errorf("policy %d/%d, %v", slot, rev, err)
	}
	if err := c.Clear(5); err != nil {
		t.Fatal(err)
	}
	at, _ := c.FirstPacket(5)
	if slot, rev, _ = c.Policy(5); slot != 0 || rev <= r || at != 0 {
		t.Errorf("cleared, but slot %d revision %d first packet %d", slot, rev, at)
	}
}

func TestRevisionsNeverRepeatOverARestart(t *testing.T) {
	c, root := newTestConfig(t)
	if r := c.NextRevision(); r != 1 {
		t.Errorf("the first revision is %d", r)
	}
	if err := c.SetPolicy(MaxEndpoints-1, 3, 900); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c, err := OpenOrCreateConfig(root)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.NextRevision(); r != 901 {
		t.Errorf("after a restart the next revision is %d, want 901", r)
	}
	c.revision.Store(1<<32 - 2)
	if r := c.NextRevision(); r != 1 {
		t.Errorf("revision %d was given out where the counter begins anew", r)
	}
	c.Close()
	if err := c.SetPolicy(1, 1, 1); err == nil {
		t.Error("a closed configuration was written")
	}
	r, err := OpenConfig(root)
	if err != nil {
		t.Fatal(err)
	}
	if slot, rev, err := r.Policy(MaxEndpoints - 1); slot != 3 || rev != 900 || err != nil {
		t.Errorf("a second reader sees %d/%d, %v", slot, rev, err)
	}
	r.Close()
}

func TestIdsAndRevisionsOutsideAreRefused(t *testing.T) {
	c, _ := newTestConfig(t)
	defer c.Close()
	if err := c.SetPolicy(MaxEndpoints, 1, 1); err == nil || !strings.Contains(err.Error(), "4095") {
		t.Errorf("id outside: %v", err)
	}
	if err := c.SetPolicy(1, 1, 0); err == nil {
		t.Error("revision 0 was taken")
	}
	if _, err := c.BumpRevision(1, 65535); err == nil {
		t.Error("bump outside was taken")
	}
}

func TestABumpKeepsTheSlotWhilePoliciesChange(t *testing.T) {
	c, _ := newTestConfig(t)
	defer c.Close()
	if err := c.SetPolicy(1, 1, c.NextRevision()); err != nil {
		t.Fatal(err)
	}
	const rounds = 2000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range uint32(rounds) {
			if err := c.SetPolicy(1, i+1, c.NextRevision()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			if _, err := c.BumpRevision(1, 2); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if slot, _, _ := c.Policy(1); slot != rounds {
		t.Errorf("a bump brought slot %d back, want %d", slot, rounds)
	}
	if slot, rev, _ := c.Policy(2); slot != 0 || rev != 0 {
		t.Errorf("an endpoint without policy got %d/%d", slot, rev)
	}
}

func newTestConfig(t *testing.T) (*Config, bpf.Root) {
	t.Helper()
	root := openRoot(t, testutils.Kernel(t))
	c, err := OpenOrCreateConfig(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(root.Map(ConfigName)) })
	return c, root
}

func openRoot(t *testing.T, env *testutils.Env) bpf.Root {
	t.Helper()
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	return root
}
