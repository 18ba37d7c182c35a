package node

import (
	"slices"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// From the binaries of the former version to those of now, under traffic, back to
// nothing by the clean-up.
func TestUpgradeFromTheFormerVersionLosesAndOpensNothing(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := twentyOf(t, env.BPFRoot, formerBinaries(t))
	tr := startTraffic(t, b, web, client, stranger)
	expect(t, b, "under the former version", web, client, stranger)
	// Identities get other numbers, because every namespace's name is a label now (N05).
	former, identities := factsOf(t, b, func(gen.Endpoint) uint32 { return 0 }), ""
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	b.Record.Agent, b.Record.Plugin = box.Binary(t, "weir-agent"), box.Binary(t, "weir-cni")
	for range times(2, 10) {
		restart(t, b)
		b.Eventually("all endpoints ready", allReady(t, b, 20))
		expect(t, b, "after the upgrade", web, client, stranger)
		if now := factsOf(t, b, func(gen.Endpoint) uint32 { return 0 }); now != former {
			t.Errorf("before\n%safter\n%s", former, now)
		}
		if now := facts(t, b); identities != "" && now != identities {
			t.Errorf("after the upgrade\n%safter one more start\n%s", identities, now)
		} else {
			identities = now
		}
		if err := b.StopAgent(); err != nil {
			t.Fatal(err)
		}
	}
	restart(t, b)
	b.Eventually("all endpoints ready", allReady(t, b, 20))
	tr.check(t, "over the upgrade")
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	removeAll(t, b, slices.Clone(b.Record.Pods))
	if code, out := run(t, b, nodeCommand(t, append([]string{b.Record.Agent, "cleanup"}, b.Record.AgentArgs...)...)); code != 0 {
		t.Fatalf("cleanup: exit code %d: %s", code, out)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) { // a link goes after its namespace
		left := leftOnNode(t, b)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the clean-up leaves %q", left)
		}
	}
}
