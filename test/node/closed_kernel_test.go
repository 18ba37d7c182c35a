package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// A wide allow with a narrow deny inside, and a map that has no room for all that
// the policy names: whichever prefixes find room, what is denied never passes, in
// either direction what has no room is closed, and both status and why say so. With
// more room after a restart all is as the policy says.
func TestPrefixesWithoutRoomAreClosed(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--ipcache-entries=32"}, Hosts: []lab.Host{outHost("ext", 9), outHost("far", 77)},
		Files: map[string]string{"pods.yaml": box.PodYAML("x", "p1", "", "")}})
	p1, hosts := only4(addPod(b, "x", "p1", http80)), hostEnds(b, http80)
	ext, far := only4(hosts["ext"]), only4(hosts["far"])
	policy := func(blocks ...string) string {
		rand.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
		return ciliumYAML("wide", "p1", "egress: [{toCIDR: [0.0.0.0/0]}, {toCIDR: ['"+strings.Join(blocks, "', '")+"']}], egressDeny: [{toCIDR: [203.0.113.9/32]}]")
	}
	apply(b, policy("198.18.0.0/24"))
	if !passes(b, p1, far, http80) || !stops(b, p1, ext, http80) || !passes(b, far, p1, http80) {
		t.Fatal("with room for it the policy is not in force")
	}
	sink := newSink(t, ext.Netns, udp9)
	stopHammer := hammer(t, p1.Netns, netip.AddrPortFrom(ext.Addrs[0], udp9))
	said := ""
	for round := range 20 {
		var blocks []string
		for i := range 40 + round {
			first := 1 + rand.IntN(9) // narrower than the deny in the order of addresses, or wider
			if round%2 == 0 {
				first = 210 + rand.IntN(9)
			}
			blocks = append(blocks, fmt.Sprintf("%d.%d.0.0/%d", first, i, 16+rand.IntN(9)))
		}
		b.Write("policies.yaml", policy(blocks...))
		b.Eventually("the map has no room for that, and status says so", func() bool {
			c, _ := component(t, b, "ipcache")
			now := c.Message
			if c.State != gen.StateFailing || now == said || !strings.Contains(now, "raise ipcache-entries") || !strings.Contains(now, "have no place among 32") {
				return false
			}
			said = now
			return true
		})
		if !stops(b, p1, ext, http80) {
			t.Fatalf("round %d: what is denied passes; %s", round, said)
		}
		if !stops(b, p1, far, http80) || !stops(b, far, p1, http80) {
			t.Fatalf("round %d: what is closed passes; %s", round, said)
		}
	}
	for _, q := range [][2]string{{"x/p1", far.Addrs[0].String()}, {far.Addrs[0].String(), "x/p1"}} {
		if e, err := b.Agent.Why(context.Background(), q[0], q[1], "80", "TCP"); err != nil || e.Verdict != gen.VerdictDeny || !strings.Contains(e.Text, "no room in the ipcache map") {
			t.Errorf("why %s to %s: %v, %v", q[0], q[1], e.Text, err)
		}
	}
	sent := stopHammer()
	if n := sink.count.Load(); n != 0 || sent < 100 {
		t.Errorf("%d of %d datagrams that are denied all the time have passed", n, sent)
	}
	sink.close()

	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	b.Record.AgentArgs = append(b.Record.AgentArgs, "--ipcache-entries=1000")
	restart(t, b)
	b.Eventually("there is room", func() bool { c, _ := component(t, b, "ipcache"); return c.State == gen.StateOk })
	b.InForce(1)
	b.Eventually("what was closed is open again", func() bool { return passes(b, p1, far, http80) && passes(b, far, p1, http80) })
	if !stops(b, p1, ext, http80) {
		t.Error("with room for all what is denied passes")
	}
}
