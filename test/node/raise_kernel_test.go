package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// A policy that does not fit is cut to what does; an agent started with more room
// lets the rest in, and no packet of what was allowed before is lost meanwhile.
func TestRaisingTheLimitOfAPolicyLosesNoTraffic(t *testing.T) {
	env := testutils.Kernel(t)
	ports, list := []lab.Port{http80}, "{port: '80', protocol: TCP}"
	for i := range 60 {
		p := lab.Port{Proto: types.ProtoTCP, Port: uint16(2001 + 2*i)}
		ports, list = append(ports, p), list+fmt.Sprintf(", {port: '%d', protocol: TCP}", p.Port)
	}
	var rules strings.Builder // of at most 40 ports each
	for part := range slices.Chunk(strings.Split(list, ", {"), 30) {
		fmt.Fprintf(&rules, "{ports: [{%s]}, ", strings.TrimPrefix(strings.Join(part, ", {"), "{"))
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--policy-entries=48"}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", "") + box.PodYAML("x", "client", "", ""),
	}})
	web, client := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: ports}), b.Add(lab.Pod{Namespace: "x", Name: "client"})
	apply(b, ciliumYAML("many", "web", "ingress: [{fromEntities: [all], toPorts: [{ports: [{port: '9', protocol: UDP}]}]}, {fromEntities: [all], toPorts: ["+rules.String()+"]}]"))
	open := func() (n int) {
		return strings.Count(letters(t, b, podSource(client), "web", web.Addresses, ports...), lab.CellAllowed)
	}
	degraded := func(want bool) {
		t.Helper()
		b.Eventually(fmt.Sprintf("degraded: %v", want), func() bool { return endpointOf(t, b, web).Policy.Degraded == want })
	}
	degraded(true)
	before := open()
	if before < 2*30 || before >= 2*len(ports) {
		t.Fatalf("%d of %d cells are open with room for 48 lines", before, 2*len(ports))
	}
	sink := newSink(t, web.Netns, udp9)
	stopHammer := hammer(t, client.Netns, netip.AddrPortFrom(web.Addresses[0], udp9))
	var flows []func() (int, error)
	for _, a := range web.Addresses {
		flows = append(flows, talk(t, client.Netns, netip.AddrPortFrom(a, 80)))
	}
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	b.Record.AgentArgs = append(b.Record.AgentArgs, "--policy-entries=100000")
	restart(t, b)
	b.Eventually("all endpoints ready", allReady(t, b, 2))
	degraded(false)
	if n := open(); n != 2*len(ports) {
		t.Errorf("with more room %d of %d cells are open", n, 2*len(ports))
	}
	for _, stop := range flows {
		if words, err := stop(); err != nil || words < 10 {
			t.Errorf("a flow that the small map allowed: %d words, %v", words, err)
		}
	}
	sent := stopHammer()
	b.Eventually("all datagrams that the small map allowed arrive", func() bool { return sent > 100 && int(sink.count.Load()) == sent })
	sink.close()
}

// The map of prefixes has no room for what a policy names; an agent started with
// more room gives it all, and no packet of what was allowed before is lost meanwhile.
func TestRaisingTheLimitOfPrefixesLosesNoTraffic(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--ipcache-entries=64"}, Hosts: []lab.Host{outHost("ext", 9), outHost("far", 77)},
		Files: map[string]string{"pods.yaml": box.PodYAML("x", "p1", "", "")}})
	p1, hosts := only4(addPod(b, "x", "p1")), hostEnds(b, http80)
	ext, far := only4(hosts["ext"]), only4(hosts["far"])
	apply(b, egressYAML("named", "toCIDR: [203.0.113.9/32]"))
	sink := newSink(t, ext.Netns, udp9)
	stopHammer := hammer(t, p1.Netns, netip.AddrPortFrom(ext.Addrs[0], udp9))
	stopTalk := talk(t, p1.Netns, netip.AddrPortFrom(ext.Addrs[0], 80))

	blocks := "203.0.113.9/32, 203.0.113.77/32"
	for i := range 70 {
		blocks += fmt.Sprintf(", 204.18.%d.0/24", i) // behind the others in the order of addresses, in which places are given
	}
	b.Write("policies.yaml", egressYAML("named", "toCIDR: ["+blocks+"]"))
	b.Eventually("the map is full", func() bool {
		c, _ := component(t, b, "ipcache")
		return c.State == gen.StateFailing && strings.Contains(c.Message, "raise ipcache-entries")
	})
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	b.Record.AgentArgs = append(b.Record.AgentArgs, "--ipcache-entries=1000")
	restart(t, b)
	b.Eventually("there is room", func() bool { c, _ := component(t, b, "ipcache"); return c.State == gen.StateOk })
	b.InForce(1)
	if !passes(b, p1, far, http80) || !passes(b, p1, ext, http80) {
		t.Error("with room for it a block is still closed")
	}
	if words, err := stopTalk(); err != nil || words < 10 {
		t.Errorf("a flow that was allowed all the time: %d words, %v", words, err)
	}
	sent := stopHammer()
	b.Eventually("all datagrams that were allowed all the time arrive", func() bool { return sent > 100 && int(sink.count.Load()) == sent })
	sink.close()
}
