package node

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/identity"
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
			t.Errorf("a denial is told: %s %+v, rule %q, reason %q", e.Direction, f, e.Rule.Text, e.Reason)
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
			denied := slices.DeleteFunc(denialsOf(stop(), proto), func(e gen.Event) bool { return e.Source.IP != src.String() && e.Source.IP != from.String() })
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

// fragmentSize is the payload of all fragments but the last.
const fragmentSize = 1440

// datagram is one UDP datagram in pieces.
type datagram struct {
	port   uint16
	body   string
	pieces [][]byte
}

// pick gives some of the pieces in another order.
func (d datagram) pick(which ...int) (out [][]byte) {
	for _, i := range which {
		out = append(out, d.pieces[i])
	}
	return out
}

// fragmentWay sends fragments from an address to a pod's, where a tap and
// sockets look for them.
type fragmentWay struct {
	t        *testing.T
	b        *box.Box
	from     lab.Netns
	src, dst netip.Addr
	tap      *tap
	sockets  *arrivals
	last     uint16 // id
}

// datagram makes the next one, with a body of that size that no other has.
func (w *fragmentWay) datagram(port uint16, size int) datagram {
	w.last++
	id := 1000 + w.last
	body := strings.Repeat(fmt.Sprintf("%d to %d, ", id, port), size)[:size]
	return datagram{port, body, udpMessage(netip.AddrPortFrom(w.src, 20000+id), netip.AddrPortFrom(w.dst, port), []byte(body)).cut(id, fragmentSize, fragmentSize)}
}

// expect sends pieces in order and wants those of passed to arrive, so many to
// be dropped since they came before their first one, and whole datagrams.
func (w *fragmentWay) expect(what string, pieces, passed [][]byte, early uint64, whole ...datagram) {
	t := w.t
	t.Helper()
	name := fmt.Sprintf("%s to %s: %s", w.src, w.dst, what)
	fragment := func(s seen) bool { return !s.out && s.src == w.src && s.id >= 1000 }
	before, counted := len(w.tap.all(t, fragment)), drops(t, w.b)[drop.FragNotFound]
	put(t, w.from, pieces...)
	fence(t, w.b, w.from, w.tap, netip.AddrPortFrom(w.src, 9), netip.AddrPortFrom(w.dst, 9))
	var want []string
	for _, p := range passed {
		s, _ := parseIP(p)
		want = append(want, s.String())
	}
	var got []string
	for _, s := range w.tap.all(t, fragment)[before:] {
		got = append(got, s.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: there arrived %q, want %q", name, got, want)
	}
	now := drops(t, w.b)[drop.FragNotFound]
	if n := now[0] + now[1] - counted[0] - counted[1]; n != early {
		t.Errorf("%s: %d were dropped as coming before their first, want %d", name, n, early)
	}
	w.delivered(name, whole...)
}

// delivered waits for datagrams, in this order, and wants no others.
func (w *fragmentWay) delivered(name string, whole ...datagram) {
	t := w.t
	t.Helper()
	var want, got []string
	for _, d := range whole {
		want = append(want, d.body)
	}
	w.b.Eventually(name+": the datagrams are there", func() bool {
		got = append(got, w.sockets.take()...)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d datagrams came out, not the %d wanted", name, len(got), len(want))
	}
}

// plain has the kernel make the fragments of a datagram of 4000 bytes.
func (w *fragmentWay) plain(port uint16, allowed bool) {
	t := w.t
	t.Helper()
	d := w.datagram(port, 4000)
	name := fmt.Sprintf("%s to %s: a datagram to %d that the kernel cut", w.src, w.dst, port)
	piece := func(s seen) bool {
		return !s.out && s.src == w.src && s.proto == types.ProtoUDP && len(s.payload) > 100
	}
	before := len(w.tap.all(t, piece))
	err := w.from.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(w.dst, port).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(d.body))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	fence(t, w.b, w.from, w.tap, netip.AddrPortFrom(w.src, 9), netip.AddrPortFrom(w.dst, 9))
	want, whole := 0, []datagram(nil)
	if allowed {
		want, whole = 3, []datagram{d}
	}
	if n := len(w.tap.all(t, piece)) - before; n != want {
		t.Errorf("%s: %d pieces arrived, want %d", name, n, want)
	}
	w.delivered(name, whole...)
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

// Neighbours are found under any ingress policy; a pod is never taken for a router.
func TestB30_NeighbourDiscoveryIsNotSubjectToPolicy(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "web", "", "") + box.PodYAML("x", "peer", "", "") + box.PodYAML("x", "forger", "", ""),
		"policies.yaml": isolate("web", "ingress: [{ports: [{protocol: UDP, port: 9}]}]"),
	}})
	web := b.Add(lab.Pod{Namespace: "x", Name: "web"})
	peer := b.Add(lab.Pod{Namespace: "x", Name: "peer"})
	forger := b.Add(lab.Pod{Namespace: "x", Name: "forger"})
	b.InForce(1)
	node := b.Record.NodeAddrs
	atWeb, atPeer := newTap(t, web.Netns, "eth0"), newTap(t, peer.Netns, "eth0")
	gateway := netip.MustParseAddr("fe80::1")

	for i := range web.Addresses {
		for _, c := range []struct {
			from lab.Netns
			to   netip.Addr
		}{{b.Node(), web.Addresses[i]}, {web.Netns, node[i]}, {web.Netns, peer.Addresses[i]}} {
			flushNeighbours(t, web.Netns)
			flushNeighbours(t, b.Node())
			before := len(atWeb.all(t, incomingICMP(gateway, 136)))
			ping(t, c.from, c.to)
			if n := len(atWeb.all(t, incomingICMP(gateway, 136))); c.to.Is6() && n == before {
				t.Errorf("ping %s: the pod knew the gateway without asking: the test proves nothing", c.to)
			}
		}
	}
	if pinged, _ := run(t, b, nodeCommand(t, "nsenter", "--net="+string(peer.Netns), "ping", "-c1", "-W1", web.Addresses[1].String())); pinged == 0 {
		t.Error("the policy is not in force: a pod pings the web pod")
	}

	// The node's own solicitation, from its link-local address, and the answer.
	src := netip.MustParseAddr("fe80::2")
	stop := follow(t, b)
	ask := icmpMessage(src, web.Addresses[1], 135, 0, 0, web.Addresses[1].AsSlice())
	ask.ttl = 255
	put(t, b.Node(), ask.whole())
	b.Eventually("the node's solicitation reaches the pod", func() bool { return len(atWeb.all(t, incomingICMP(src, 135))) == 1 })
	for _, e := range denialsOf(stop(), types.ProtoICMPv6) {
		if e.Destination.Pod == web.Key() {
			t.Errorf("neighbour discovery is judged: %+v", e)
		}
	}

	// Router advertisements that a pod forges, to everybody and to each.
	heard := newTap(t, forger.Netns, "eth0")
	atNode := listenRA(t, b.Node())
	counted, sent := drops(t, b)[drop.ForbiddenICMP6], uint64(0)
	local := linkLocal(t, forger.Netns)
	for _, src := range []netip.Addr{local, forger.Addresses[1], gateway} {
		for _, dst := range []netip.Addr{netip.MustParseAddr("ff02::1"), web.Addresses[1], peer.Addresses[1], node[1]} {
			for _, ttl := range []uint8{255, 64} {
				prefix := []byte{3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0x66, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
				ra := icmpMessage(src, dst, 134, 0, 64<<24|1800, append(make([]byte, 8), prefix...))
				ra.ttl = ttl
				put(t, forger.Netns, ra.whole())
				sent++
			}
		}
	}
	ping(t, forger.Netns, node[1])
	for name, at := range map[string]*tap{"web": atWeb, "peer": atPeer} {
		to := map[string]*lab.AttachedPod{"web": web, "peer": peer}[name]
		fence(t, b, forger.Netns, at, netip.AddrPortFrom(forger.Addresses[1], 9), netip.AddrPortFrom(to.Addresses[1], 9))
		if ras := at.all(t, func(s seen) bool { return !s.out && s.proto == types.ProtoICMPv6 && s.icmp == 134 }); len(ras) != 0 {
			t.Errorf("pod %s got forged advertisements: %v", name, ras)
		}
	}
	if n := len(heard.all(t, func(s seen) bool { return s.out && s.icmp == 134 })); uint64(n) != sent {
		t.Errorf("%d of %d advertisements left the pod", n, sent)
	}
	if n := atNode(); n != 0 {
		t.Errorf("the node heard %d forged advertisements", n)
	}
	if now := drops(t, b)[drop.ForbiddenICMP6]; now[1]-counted[1] != sent {
		t.Errorf("%d advertisements were sent, %d counted as forbidden", sent, now[1]-counted[1])
	}
}

// A dropped packet is told once and counted once, with all that explains it, and
// can be captured on the host side of the sender's veth.
func TestB56_ADropIsToldCountedAndCaptured(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{abroad}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", "") + box.PodYAML("x", "mute", "", "") + box.PodYAML("x", "banned", "", "") + box.PodYAML("x", "stranger", "", ""),
		"policies.yaml": isolate("web", "ingress: [{from: [{podSelector: {matchLabels: {pod: banned}}}]}, {ports: [{protocol: UDP, port: 9}]}]") +
			isolate("mute", "policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 9}]}]") +
			"apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: ban, namespace: x}\n" +
			"spec: {endpointSelector: {matchLabels: {pod: web}}, ingressDeny: [{fromEndpoints: [{matchLabels: {pod: banned}}], toPorts: [{ports: [{port: \"80\"}]}]}]}\n",
	}})
	web := b.Add(lab.Pod{Namespace: "x", Name: "web"})
	mute := b.Add(lab.Pod{Namespace: "x", Name: "mute"})
	banned := b.Add(lab.Pod{Namespace: "x", Name: "banned"})
	stranger := b.Add(lab.Pod{Namespace: "x", Name: "stranger"})
	b.InForce(3)
	outside := b.Record.Hosts[0]
	arrived := newTap(t, web.Netns, "eth0")
	for _, c := range []struct {
		from, to  *lab.AttachedPod // from nil: outside
		spoofed   bool
		direction gen.Direction
		decider   *lab.AttachedPod
		reason    drop.Reason
		kind      gen.RuleKind
		policy    string
	}{
		{stranger, web, false, gen.DirectionIngress, web, drop.Policy, gen.RuleDefaultDeny, "web"},
		{banned, web, false, gen.DirectionIngress, web, drop.PolicyDeny, gen.RulePolicy, "ban"},
		{mute, stranger, false, gen.DirectionEgress, mute, drop.Policy, gen.RuleDefaultDeny, "mute"},
		{nil, web, false, gen.DirectionIngress, web, drop.Policy, gen.RuleDefaultDeny, "web"},
		{stranger, web, true, gen.DirectionEgress, stranger, drop.InvalidSource, "", ""},
	} {
		from, link := hostSource(outside), "out0"
		identities := []uint32{uint32(identity.ReservedWorldIPv4), uint32(identity.ReservedWorldIPv6)}
		if c.from != nil {
			e := endpointOf(t, b, c.from)
			from, link, identities = podSource(c.from), e.Interface.HostName, []uint32{e.Identity.ID, e.Identity.ID}
		}
		capture := newTap(t, b.Node(), link)
		for i, own := range from.Addrs {
			for _, proto := range []types.Proto{types.ProtoTCP, types.ProtoUDP} {
				src := netip.AddrPortFrom(own, 30000)
				if c.spoofed {
					src = netip.AddrPortFrom(mute.Addresses[i], 30000)
				}
				dst := netip.AddrPortFrom(c.to.Addresses[i], 80)
				name := fmt.Sprintf("%s %s from %s, %s", proto, src, from.Name, c.reason)
				m := synMessage(src, dst)
				if proto == types.ProtoUDP {
					m = udpMessage(src, dst, []byte("x"))
				}
				stop, counted, received := follow(t, b), drops(t, b), rxPackets(t, b.Node(), link)
				put(t, from.Netns, m.whole())
				b.Eventually(name+": the capture", func() bool { return len(capture.all(t, flow(proto, src, dst))) > 0 })
				denied := denials(stop(), lab.Flow{Proto: proto, Src: src, Dst: dst})
				if len(denied) != 1 {
					t.Errorf("%s: told %d times: %+v", name, len(denied), denied)
					continue
				}
				e, decider := denied[0], endpointOf(t, b, c.decider)
				if e.Type != gen.EventDrop || e.Direction != c.direction || e.Endpoint != decider.ID || e.Reason != c.reason.String() || e.Length != uint32(len(m.whole())) {
					t.Errorf("%s: told as %+v", name, e)
				}
				if want := identities[i]; e.Source.Identity != want { // who sent it, not whom it names
					t.Errorf("%s: the sender's identity is told as %d, not %d", name, e.Source.Identity, want)
				}
				if want := endpointOf(t, b, c.to).Identity.ID; e.Destination.Identity != want {
					t.Errorf("%s: the destination's identity is told as %d, not %d", name, e.Destination.Identity, want)
				}
				because := append(e.Rule.Isolating, e.Rule.Policy)
				if e.Rule.Kind != c.kind || !slices.ContainsFunc(because, func(p gen.PolicyRef) bool { return p.Name == c.policy }) {
					t.Errorf("%s: the rule is told as %+v", name, e.Rule)
				}
				want, got := counted, drops(t, b)
				n := want[c.reason]
				if c.direction == gen.DirectionIngress {
					n[0]++
				} else {
					n[1]++
				}
				want[c.reason] = n
				if !maps.Equal(got, want) {
					t.Errorf("%s: the counters are %v, want %v", name, got, want)
				}
				if n := len(capture.all(t, flow(proto, src, dst))); n != 1 {
					t.Errorf("%s: captured %d times on %s", name, n, link)
				}
				if now := rxPackets(t, b.Node(), link); now <= received {
					t.Errorf("%s: the RX counter of %s stays at %d", name, link, now)
				}
				if n := len(arrived.all(t, flow(proto, src, dst))); n != 0 {
					t.Errorf("%s: arrived %d times", name, n)
				}
			}
		}
	}
}
