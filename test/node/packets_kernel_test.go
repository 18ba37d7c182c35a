package node

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

var (
	udp53  = lab.Port{Proto: types.ProtoUDP, Port: 53}
	abroad = lab.Host{Name: "outside", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:ffff::10")}}
	router = lab.Host{Name: "router", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:51::1")}}
)

// A policy of one direction denies nothing in the other and tells of no denial.
func TestB25_OneDirectionDoesNotIsolateTheOther(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{abroad}, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "in", "", "") + box.PodYAML("x", "out", "", "") + box.PodYAML("x", "peer", "", ""),
		"policies.yaml": isolate("in", "policyTypes: [Ingress]") + isolate("out", "policyTypes: [Egress]"),
	}})
	ports := []lab.Port{http80, udp53}
	in := b.Add(lab.Pod{Namespace: "x", Name: "in", Ports: ports})
	out := b.Add(lab.Pod{Namespace: "x", Name: "out", Ports: ports})
	peer := b.Add(lab.Pod{Namespace: "x", Name: "peer", Ports: ports})
	outside := b.Record.Hosts[0]
	b.Serve(outside.Netns, ports...)
	b.InForce(2)

	stop := follow(t, b)
	for _, c := range []struct {
		from lab.Source
		name string
		to   []netip.Addr
	}{
		{podSource(in), "peer", peer.Addresses}, {podSource(in), "outside", outside.Addresses}, {podSource(in), "out", out.Addresses},
		{podSource(peer), "out", out.Addresses}, {hostSource(outside), "out", out.Addresses},
	} {
		if got := letters(t, b, c.from, c.name, c.to, ports...); got != "...." {
			t.Errorf("%s to %s: %q, want all allowed", c.from.Name, c.name, got)
		}
	}
	told := 0
	for _, e := range stop() {
		f, ok := probe.FlowOf(e)
		if !ok || !f.Proto.HasPorts() {
			continue
		}
		told++
		if e.Verdict == gen.VerdictDeny {
			t.Errorf("a denial is told: %s %s, rule %q, reason %q", e.Direction, e.Text, e.Rule.Text, e.Reason)
		}
	}
	if told < 20 {
		t.Errorf("%d events tell of 20 exchanges", told)
	}

	// The direction that each policy is about is closed.
	for _, c := range []struct {
		from lab.Source
		name string
		to   []netip.Addr
		want string
	}{
		{podSource(peer), "in", in.Addresses, "IIII"}, {hostSource(outside), "in", in.Addresses, "IIII"},
		{podSource(out), "peer", peer.Addresses, "EEEE"}, {podSource(out), "outside", outside.Addresses, "EEEE"}, {podSource(out), "in", in.Addresses, "BBBB"},
	} {
		if got := letters(t, b, c.from, c.name, c.to, ports...); got != c.want {
			t.Errorf("%s to %s: %q, want %q", c.from.Name, c.name, got, c.want)
		}
	}
}

// A rule about SCTP opens its port of SCTP and nothing else, and isolates.
func TestB26_SCTPRuleOpensItsPortOfSCTPOnly(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{abroad}, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "diameter", "", "") + box.PodYAML("x", "client", "", ""),
		"policies.yaml": isolate("diameter", "ingress: [{ports: [{protocol: SCTP, port: 3301}]}]"),
	}})
	ports := []lab.Port{{Proto: types.ProtoTCP, Port: 3301}, {Proto: types.ProtoSCTP, Port: 3301}, {Proto: types.ProtoSCTP, Port: 3302}, {Proto: types.ProtoUDP, Port: 3301}}
	server := b.Add(lab.Pod{Namespace: "x", Name: "diameter", Ports: ports})
	client := b.Add(lab.Pod{Namespace: "x", Name: "client"})
	b.InForce(1)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	t.Logf("an SCTP socket of this kernel: %v", err) // absent or not, the pod is isolated
	arrived := newTap(t, server.Netns, "eth0")
	for _, from := range []lab.Source{podSource(client), hostSource(b.Record.Hosts[0])} {
		if got := letters(t, b, from, "diameter", server.Addresses, ports...); got != "I.III.II" {
			t.Errorf("%s: TCP/3301, SCTP/3301, SCTP/3302, UDP/3301 by family: %q, want I.III.II", from.Name, got)
		}
		for _, src := range from.Addrs {
			of := func(proto types.Proto, port uint16) int {
				return len(arrived.all(t, func(s seen) bool {
					return !s.out && s.src == src && s.proto == proto && s.dport == port
				}))
			}
			if n := of(types.ProtoSCTP, 3301); n == 0 {
				t.Errorf("no INIT from %s to 3301 arrived", src)
			}
			if n := of(types.ProtoSCTP, 3302) + of(types.ProtoTCP, 3301) + of(types.ProtoUDP, 3301); n != 0 {
				t.Errorf("%d packets from %s that the rule does not name arrived", n, src)
			}
		}
	}
}

// A rule about TCP opens no ping; an ICMP error from whatever router reaches the
// pod if it is about a live connection, and only then.
func TestB27_ErrorsOfLiveFlowsPassAndPingDoesNot(t *testing.T) {
	env := testutils.Kernel(t)
	web := "egress: [{to: [{podSelector: {matchLabels: {pod: p2}}}], ports: [{port: 80}]}]"
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{router}, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "p2", "", "") + box.PodYAML("x", "p3", "", ""),
		"policies.yaml": isolate("p1", "policyTypes: [Egress], "+web) + isolate("p3", "policyTypes: [Ingress, Egress], "+web),
	}})
	p1 := b.Add(lab.Pod{Namespace: "x", Name: "p1"})
	p2 := b.Add(lab.Pod{Namespace: "x", Name: "p2", Ports: []lab.Port{http80}})
	p3 := b.Add(lab.Pod{Namespace: "x", Name: "p3"}) // isolated from the router, too
	hop := b.Record.Hosts[0]
	b.InForce(2)
	peer := newTap(t, p2.Netns, "eth0")
	for _, p := range []*lab.AttachedPod{p1, p3} {
		pod := newTap(t, p.Netns, "eth0")
		for i, src := range p.Addresses {
			dst, from := p2.Addresses[i], hop.Addresses[i]
			request, tooBig, code := uint8(8), uint8(3), uint8(4)
			proto, reason := types.ProtoICMP, "icmp-error-unrelated"
			if src.Is6() {
				request, tooBig, code, proto = 128, 2, 0, types.ProtoICMPv6
			}

			to := netip.AddrPortFrom(dst, 80)
			conn := dial(t, p.Netns, to)
			live := conn.LocalAddr().(*net.TCPAddr).AddrPort()
			stop := follow(t, b)
			put(t, p.Netns, icmpMessage(src, dst, request, 0, 7<<16|1, []byte("ping")).whole())
			word(t, conn) // came behind the ping
			if words := peer.all(t, flow(types.ProtoTCP, live, to)); len(words) == 0 {
				t.Errorf("p2 saw nothing of the connection from %s", live)
			}
			if pings := peer.all(t, incomingICMP(src, request)); len(pings) != 0 {
				t.Errorf("p2 got pings of %s, which may reach its TCP port 80 only: %v", src, pings)
			}

			// The router reports a packet: first of a flow that is not, then of the live one.
			report := func(quoted message, mtu uint32) []byte {
				ip := quoted.whole()
				return icmpMessage(from, src, tooBig, code, mtu, ip[:len(ip)-len(quoted.payload)+8]).whole()
			}
			put(t, hop.Netns, report(synMessage(netip.AddrPortFrom(src, live.Port()-1), to), 1301), report(synMessage(live, to), 1302))
			came := func() []seen { return pod.all(t, incomingICMP(from, tooBig)) }
			b.Eventually("the error about the live flow of "+src.String(), func() bool { return len(came()) > 0 })
			if got := came(); len(got) != 1 || got[0].payload[6] != 1302>>8 || got[0].payload[7] != 1302&0xff {
				t.Errorf("%s got %v, want the error about its live flow only", src, got)
			}
			word(t, conn)
			denied := slices.DeleteFunc(stop(), func(e gen.Event) bool {
				f, ok := probe.FlowOf(e)
				return !ok || e.Verdict != gen.VerdictDeny || f.Proto != proto || f.Src.Addr() != src && f.Src.Addr() != from
			})
			if len(denied) != 2 {
				t.Fatalf("%s: %d denials of ICMP are told, want the ping's and the forged error's: %+v", src, len(denied), denied)
			}
			if f, _ := probe.FlowOf(denied[0]); f.Dst.Addr() != dst || denied[0].Direction != gen.DirectionEgress || denied[0].IcmpType != request {
				t.Errorf("%s: the ping is told as %+v", src, denied[0])
			}
			if f, _ := probe.FlowOf(denied[1]); f.Dst.Addr() != src || denied[1].Reason != reason || denied[1].Direction != gen.DirectionIngress {
				t.Errorf("%s: the forged error is told as %+v", src, denied[1])
			}
		}
	}
}

// Fragments of an allowed datagram pass in every order in which the first one
// is the first; those before it, and those of a denied datagram, never do.
func TestB29_FragmentsFollowTheirFirst(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{abroad}, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "closed", "", "") + box.PodYAML("x", "open", "", "") + box.PodYAML("x", "sender", "", ""),
		"policies.yaml": isolate("closed", "ingress: [{ports: [{protocol: UDP, port: 4000}, {protocol: UDP, port: 9}]}]"),
	}})
	closed := b.Add(lab.Pod{Namespace: "x", Name: "closed"})
	open := b.Add(lab.Pod{Namespace: "x", Name: "open"})
	sender := b.Add(lab.Pod{Namespace: "x", Name: "sender"})
	b.InForce(1)
	for _, to := range []*lab.AttachedPod{closed, open} {
		arrived, sockets := newTap(t, to.Netns, "eth0"), listenUDP(t, to.Netns, 4000, 4001)
		for _, from := range []lab.Source{podSource(sender), hostSource(b.Record.Hosts[0])} {
			for i, src := range from.Addrs {
				w := &fragmentWay{t: t, b: b, from: from.Netns, src: src, dst: to.Addresses[i], tap: arrived, sockets: sockets}
				a, z := w.datagram(4000, 4000), w.datagram(4000, 4000)
				w.expect("in order", a.pieces, a.pieces, 0, a)
				w.expect("in order behind the first", z.pick(0, 2, 1), z.pick(0, 2, 1), 0, z)
				a = w.datagram(4000, 4000)
				w.expect("reversed", a.pick(2, 1, 0), a.pick(0), 2)
				w.expect("those before the first once more", a.pick(2, 1), a.pick(2, 1), 0, a)
				a, z = w.datagram(4000, 4000), w.datagram(4000, 4000)
				mixed := slices.Concat(a.pick(0), z.pick(0), a.pick(1), z.pick(1, 2), a.pick(2))
				w.expect("two at once", mixed, mixed, 0, z, a)
				for tail := 1; tail <= 3; tail++ {
					a = w.datagram(4000, 2*fragmentSize-8+tail)
					w.expect("a tiny last one", a.pieces, a.pieces, 0, a)
				}
				w.expect("later ones alone", w.datagram(4000, 4000).pick(1, 2), nil, 2)
				w.plain(4000, true)
				if to == open {
					continue
				}
				w.expect("denied, in order", w.datagram(4001, 4000).pieces, nil, 0)
				w.expect("denied, reversed", w.datagram(4001, 4000).pick(2, 1, 0), nil, 2)
				w.expect("denied, later ones alone", w.datagram(4001, 4000).pick(1, 2), nil, 2)
				w.expect("denied, with a tiny last one", w.datagram(4001, 2*fragmentSize-7).pieces, nil, 0)
				a, z = w.datagram(4000, 4000), w.datagram(4001, 4000)
				w.expect("denied between allowed", slices.Concat(a.pick(0), z.pick(0), a.pick(1), z.pick(1, 2), a.pick(2)), a.pieces, 0, a)
				w.plain(4001, false)
			}
		}
	}
}
