package node

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// outside is a host of both families.
func outside() lab.Host {
	return lab.Host{Name: "ext", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:7::7")}}
}

// quick makes the agent look at the node often.
const quick = "--node-check=200ms"

func TestN12WhatIsMeantForAnAddressThatNoPodHasEndsAtTheNode(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outside()}, AgentFlags: []string{quick}, Files: map[string]string{"pods.yaml": box.PodYAML("x", "web", "", "")}})
	web := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	ext := b.Record.Hosts[0]
	inside(t, b.Node(), "ip route add default via 198.51.100.7 dev out0 onlink; ip -6 route add default via 2001:db8:7::7 dev out0 onlink")
	inside(t, ext.Netns, "nft 'table inet seen { counter back4 { }; counter back6 { }; chain in { type filter hook prerouting priority 0; ip daddr 10.78.200.7 counter name back4; ip6 daddr fd00:78::f007 counter name back6; }; }'")
	back := func() string {
		return inside(t, ext.Netns, "nft list counters | grep -c 'packets 0 ' || true")
	}
	unreachable := func() (n int) {
		for _, flag := range []string{"-4", "-6"} {
			n += strings.Count(inside(t, b.Node(), "ip "+flag+" route show type unreachable proto 87"), "metric 4294967295")
		}
		return n
	}
	inside(t, ext.Netns, "ping -c 3 -i 0.1 -W 1 10.78.200.7; ping -c 3 -i 0.1 -W 1 fd00:78::f007; true")
	if back() != "2" {
		t.Errorf("packets to an address that no pod has came back: %s", inside(t, ext.Netns, "nft list counters"))
	}
	for i, dst := range web.Addresses {
		if err := b.Try(ext.Netns, ext.Addresses[i], dst, http80); err != nil {
			t.Errorf("the pod's own route wins: %v", err)
		}
	}
	inside(t, b.Node(), "ip route del unreachable 10.78.0.0/16 metric 4294967295; ip -6 route del unreachable fd00:78::/112 metric 4294967295")
	b.Eventually("both routes are back", func() bool { return unreachable() == 2 })
	warned(t, b, "put-back", "unreachable route of pool")

	inside(t, b.Node(), "ip addr add 10.78.9.1/24 dev out0")
	if c := warned(t, b, "pool-overlap", "10.78.9.0/24 of link out0"); c.Breaks == "" || c.Next == "" {
		t.Errorf("%+v", c)
	}
	b.Eventually("the pool with the link's own prefix has no route", func() bool { return unreachable() == 1 })
	inside(t, b.Node(), "ip addr del 10.78.9.1/24 dev out0")
	notWarned(t, b, "pool-overlap")
	b.Eventually("it has one again", func() bool { return unreachable() == 2 })
	cleanNode(t, b)
	if n := unreachable(); n != 0 {
		t.Errorf("%d routes are left after clean-up", n)
	}
}

func TestN28RoutersAreHeardWhileTheNodeForwards(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outside()}, AgentFlags: []string{quick}})
	ext := b.Record.Hosts[0].Netns
	learned := func() bool {
		return strings.Contains(inside(t, b.Node(), "ip -6 route show default dev out0"), "proto ra")
	}
	setting := func(name string) string { return inside(t, b.Node(), "cat /proc/sys/net/ipv6/conf/"+name) }
	hears := func(when string) {
		t.Helper()
		b.Eventually(when+": a default route by advertisement", func() bool { advertise(t, ext); return learned() })
	}
	hears("while the agent runs")
	cleanNode(t, b)
	if got := setting("all/forwarding") + setting("out0/accept_ra"); got != "01" {
		t.Fatalf("after clean-up forwarding and accept_ra are %s, not 01", got)
	}
	if !learned() {
		t.Error("clean-up cost the default route")
	}
	inside(t, b.Node(), "ip link add eth9 type veth peer name eth9p; echo 1 > /proc/sys/net/ipv6/conf/eth9/forwarding") // forwards by itself, and hears no routers; this costs routes, too
	hears("without an agent")
	restart(t, b)
	if !learned() {
		t.Error("the start of the agent cost the default route")
	}
	if got := setting("all/forwarding") + setting("out0/accept_ra") + setting("eth9/accept_ra") + setting("lo/accept_ra"); got != "1211" {
		t.Errorf("forwarding, accept_ra of out0, eth9, lo: %s, not 1211", got)
	}
	notWarned(t, b, "lost-route")
	inside(t, b.Node(), "ip link add eth8 type veth peer name eth8p")
	b.Eventually("a link that comes later hears routers too", func() bool { return setting("eth8/accept_ra") == "2" })
	inside(t, b.Node(), "ip -6 route del default proto ra")
	warned(t, b, "lost-route", "IPv6 default route by out0")
	hears("after it was lost")
	notWarned(t, b, "lost-route")
	inside(t, b.Node(), "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding")
	warned(t, b, "put-back", "net/ipv6/conf/all/forwarding")
	inside(t, b.Node(), "ip -6 route del default proto ra")
	hears("anew, so that it can be lost anew")
	cleanNode(t, b)
	if got := setting("all/forwarding") + setting("out0/accept_ra") + setting("eth8/accept_ra") + setting("eth9/forwarding"); got != "0111" {
		t.Errorf("after clean-up forwarding, accept_ra of out0, eth8, forwarding of eth9: %s, not 0111", got)
	}
	if !learned() {
		t.Error("clean-up cost the default route")
	}
}

func TestN30AddressesOfNodesAreNeverLeased(t *testing.T) {
	env := testutils.Kernel(t)
	const other = "apiVersion: v1\nkind: Node\nmetadata: {name: other}\nstatus: {addresses: [{type: InternalIP, address: 10.78.0.4}, {type: InternalIP, address: \"fd00:78::4\"}]}\n"
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, IPv4: "10.78.0.0/29", IPv6: "fd00:78::/125", Hosts: []lab.Host{outside()}, AgentFlags: []string{quick},
		Files: map[string]string{"node.yaml": other, "pods.yaml": box.PodYAML("x", "a", "", "") + box.PodYAML("x", "b", "", "")}})
	inside(t, b.Node(), "ip addr add 10.78.0.2/32 dev out0; ip -6 addr add fd00:78::2/128 dev out0 nodad") // later than the start
	b.Settle()
	inUse := func(addr, whose string) {
		t.Helper()
		b.Eventually(addr+" is refused", func() bool {
			l, err := b.Agent.Lease(t.Context(), leaseOf(addr))
			if err == nil {
				_ = b.Agent.Release(t.Context(), netip.MustParseAddr(addr), l.ID)
			}
			return err != nil && strings.Contains(err.Error(), whose)
		})
	}
	inUse("10.78.0.2", "this node")
	inUse("fd00:78::2", "this node")
	inUse("10.78.0.4", "node other")
	inUse("fd00:78::4", "node other")
	for _, name := range []string{"a", "b"} {
		a := b.Add(lab.Pod{Namespace: "x", Name: name})
		for _, addr := range a.Addresses {
			if s := addr.String(); strings.HasSuffix(s, ".2") || strings.HasSuffix(s, ".4") || strings.HasSuffix(s, ":2") || strings.HasSuffix(s, ":4") {
				t.Errorf("pod %s has a node's address %s", name, s)
			}
		}
	}
	inside(t, b.Node(), "ip addr add 10.78.0.3/32 dev out0") // of pod a by now
	warned(t, b, "address-conflict", "10.78.0.3, which belongs to this node")
	inside(t, b.Node(), "ip addr del 10.78.0.3/32 dev out0")
	notWarned(t, b, "address-conflict")
}

func TestN30APoolOfTheDefaultGatewaysNetworkIsRefused(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, IPv4: "10.78.0.0/24", IPv6: "none", Hosts: []lab.Host{outside()}, AgentFlags: []string{quick}})
	inside(t, b.Node(), "ip addr add 10.78.0.20/24 dev out0")
	warned(t, b, "pool-overlap", "10.78.0.0/24 of link out0") // told while it runs
	cleanNode(t, b)
	refused := func(why string, flags ...string) {
		t.Helper()
		code, out := run(t, b, agentCommand(t, b, "", flags...))
		if code != 1 || !strings.Contains(out, why) {
			t.Errorf("exit code %d, not 1 with %q: %s", code, why, out)
		}
	}
	inside(t, b.Node(), "ip route add default via 10.78.0.3")
	refused("--allow-pool-overlap")
	refused("is the router of the default route", "--allow-pool-overlap", "--ipv4-gateway=10.78.0.3")
	if got := inside(t, b.Node(), "cat /proc/sys/net/ipv4/ip_forward; ip -4 addr show dev lo | grep -c 10.78 || true"); !strings.HasSuffix(got, "0") {
		t.Errorf("a refused start changed the node: %s", got)
	}
	b.Record.AgentArgs = append(b.Record.AgentArgs, "--allow-pool-overlap")
	restart(t, b)
	if c := warned(t, b, "pool-overlap", "10.78.0.0/24 of link out0"); c.Breaks != "nothing" {
		t.Errorf("allowed by a person, and still breaks %s", c.Breaks)
	}
	if got := inside(t, b.Node(), "ip route show type unreachable"); got != "" {
		t.Errorf("the link's own prefix is unreachable: %s", got)
	}
	for addr, whose := range map[string]string{"10.78.0.20": "this node", "10.78.0.3": "router"} {
		if _, err := b.Agent.Lease(t.Context(), leaseOf(addr)); err == nil || !strings.Contains(err.Error(), whose) {
			t.Errorf("lease of %s: %v", addr, err)
		}
	}
}

func TestN31TheConflistComesBack(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot})
	path := filepath.Join(b.Dir(), "cni", "10-weir.conflist")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		does func() error
		text string
	}{
		{func() error { return os.Remove(path) }, "10-weir.conflist was removed"},
		{func() error { return os.WriteFile(path, []byte("{}"), 0o600) }, "10-weir.conflist was changed"},
		{func() error { return os.RemoveAll(filepath.Dir(path)) }, "(2 times)"},
	} {
		if err := c.does(); err != nil {
			t.Fatal(err)
		}
		b.Eventually("the file is back", func() bool { now, _ := os.ReadFile(path); return string(now) == string(whole) })
		b.Eventually("status says "+c.text, func() bool {
			s, err := b.Agent.Status(t.Context())
			return err == nil && strings.Contains(fmt.Sprint(s.Components), c.text)
		})
	}
	cleanNode(t, b)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("clean-up left the file: %v", err)
	}
}

func TestN63AFilterThatDropsWhatTheNodeForwardsIsToldAndOpenedOnDemand(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("iptables-legacy"), testutils.Tool("nft"))
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outside()}, AgentFlags: []string{quick}, Files: map[string]string{"pods.yaml": box.PodYAML("x", "web", "", "")}})
	web := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	ext := b.Record.Hosts[0]
	reached := func() (n int) {
		for i, dst := range web.Addresses {
			if b.Try(ext.Netns, ext.Addresses[i], dst, http80) == nil {
				n++
			}
		}
		return n
	}
	const code = "packet-filter"
	notWarned(t, b, code)
	for name, c := range map[string]struct{ drop, flush, open, list string }{
		"as ufw": {"iptables-legacy -P FORWARD DROP; ip6tables-legacy -P FORWARD DROP", "iptables-legacy -F FORWARD; ip6tables-legacy -F FORWARD",
			"iptables-legacy -P FORWARD ACCEPT; ip6tables-legacy -P FORWARD ACCEPT", "iptables-legacy -S FORWARD; ip6tables-legacy -S FORWARD"},
		"as Docker": {"iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP", "iptables-nft -F FORWARD; ip6tables-nft -F FORWARD",
			"iptables-nft -P FORWARD ACCEPT; ip6tables-nft -P FORWARD ACCEPT", "nft list ruleset"},
	} {
		inside(t, b.Node(), c.drop)
		told := warned(t, b, code, "drops forwarded packets")
		if told.Breaks != "pods" {
			t.Errorf("%s: breaks %s", name, told.Breaks)
		}
		if n := reached(); n != 0 {
			t.Fatalf("%s: the pod is reached by %d families though the filter drops", name, n)
		}
		for told, ok := warning(t, b, code); ok; told, ok = warning(t, b, code) { // one line per chain; what it says to run helps
			commands, _, _ := strings.Cut(told.Next, " (or ")
			inside(t, b.Node(), commands)
			b.Eventually(name+": that chain is told of no more", func() bool {
				now, still := warning(t, b, code)
				return !still || now.Subject != told.Subject
			})
		}
		if n := reached(); n != 2 {
			t.Errorf("%s: after the commands of the status the pod is reached by %d families", name, n)
		}
		inside(t, b.Node(), c.flush)

		plain := b.Record.AgentArgs
		if err := b.StopAgent(); err != nil {
			t.Fatal(err)
		}
		b.Record.AgentArgs = append(append([]string{}, plain...), "--accept-forward")
		restart(t, b)
		if n := reached(); n != 2 {
			t.Errorf("%s: with --accept-forward the pod is reached by %d families", name, n)
		}
		notWarned(t, b, code)
		inside(t, b.Node(), c.flush)
		b.Eventually(name+": rules that were flushed come back", func() bool { return reached() == 2 })
		warned(t, b, "put-back", "accepts forwarded packets")
		if err := b.StopAgent(); err != nil {
			t.Fatal(err)
		}
		b.Record.AgentArgs = plain
		restart(t, b)
		if got := inside(t, b.Node(), c.list); strings.Contains(got, "weir:accept-forward") {
			t.Errorf("%s: without the setting a rule of ours is left: %s", name, got)
		}
		inside(t, b.Node(), c.open)
		notWarned(t, b, code)
	}
	inside(t, b.Node(), "iptables-nft -P FORWARD DROP")
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	b.Record.AgentArgs = append(b.Record.AgentArgs, "--accept-forward")
	restart(t, b)
	cleanNode(t, b)
	if got := inside(t, b.Node(), "nft list ruleset"); strings.Contains(got, "weir:") || !strings.Contains(got, "policy drop") {
		t.Errorf("after clean-up: %s", got)
	}
}
