package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// message is an IP packet in the making, from its addresses to its payload.
type message struct {
	src, dst netip.Addr
	proto    types.Proto
	ttl      uint8 // 0: 64
	payload  []byte
}

// ipHeader makes the network header of a packet with that much behind it.
func (m message) ipHeader(next types.Proto, length int, id uint16, fragment uint16) []byte {
	ttl := m.ttl
	if ttl == 0 {
		ttl = 64
	}
	if m.src.Is4() {
		h := make([]byte, 20, 20+length)
		h[0], h[8], h[9] = 0x45, ttl, byte(next)
		binary.BigEndian.PutUint16(h[2:], uint16(20+length))
		binary.BigEndian.PutUint16(h[4:], id)
		binary.BigEndian.PutUint16(h[6:], fragment)
		copy(h[12:], m.src.AsSlice())
		copy(h[16:], m.dst.AsSlice())
		binary.BigEndian.PutUint16(h[10:], ^sum16(0, h))
		return h
	}
	h := make([]byte, 40, 40+length)
	h[0], h[6], h[7] = 0x60, byte(next), ttl
	binary.BigEndian.PutUint16(h[4:], uint16(length))
	copy(h[8:], m.src.AsSlice())
	copy(h[24:], m.dst.AsSlice())
	return h
}

// whole is the packet from the network header on.
func (m message) whole() []byte {
	return append(m.ipHeader(m.proto, len(m.payload), 1, 0), m.payload...)
}

// cut makes fragments of the given sizes, all multiples of 8, and one of the rest.
func (m message) cut(id uint16, sizes ...int) (out [][]byte) {
	for at := 0; at < len(m.payload); {
		size := len(m.payload) - at
		if len(out) < len(sizes) {
			size = sizes[len(out)]
		}
		body, more := m.payload[at:at+size], at+size < len(m.payload)
		if m.src.Is4() {
			field := uint16(at / 8)
			if more {
				field |= 0x2000
			}
			out = append(out, append(m.ipHeader(m.proto, size, id, field), body...))
		} else {
			h := make([]byte, 8)
			h[0] = byte(m.proto)
			field := uint16(at)
			if more {
				field |= 1
			}
			binary.BigEndian.PutUint16(h[2:], field)
			binary.BigEndian.PutUint32(h[4:], uint32(id))
			out = append(out, append(append(m.ipHeader(44, 8+size, 0, 0), h...), body...))
		}
		at += size
	}
	return out
}

// checked fills in the checksum at an offset of the payload.
func (m message) checked(at int, pseudo bool) message {
	sum := uint32(0)
	if pseudo {
		n := len(m.payload)
		sum = uint32(sum16(0, append(m.src.AsSlice(), m.dst.AsSlice()...)))
		sum = uint32(sum16(sum, []byte{0, byte(m.proto), byte(n >> 8), byte(n)}))
	}
	binary.BigEndian.PutUint16(m.payload[at:], ^sum16(sum, m.payload))
	return m
}

func udpMessage(src, dst netip.AddrPort, body []byte) message {
	p := make([]byte, 8, 8+len(body))
	binary.BigEndian.PutUint16(p, src.Port())
	binary.BigEndian.PutUint16(p[2:], dst.Port())
	binary.BigEndian.PutUint16(p[4:], uint16(8+len(body)))
	return message{src: src.Addr(), dst: dst.Addr(), proto: types.ProtoUDP, payload: append(p, body...)}.checked(6, true)
}

// synMessage is the first packet of a TCP connection.
func synMessage(src, dst netip.AddrPort) message {
	p := make([]byte, 20)
	binary.BigEndian.PutUint16(p, src.Port())
	binary.BigEndian.PutUint16(p[2:], dst.Port())
	p[12], p[13], p[14] = 5<<4, 2, 4
	return message{src: src.Addr(), dst: dst.Addr(), proto: types.ProtoTCP, payload: p}.checked(16, true)
}

// icmpMessage has eight bytes of header, the last four of which are rest.
func icmpMessage(src, dst netip.Addr, kind, code uint8, rest uint32, body []byte) message {
	p := append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, body...)
	binary.BigEndian.PutUint32(p[4:], rest)
	m := message{src: src, dst: dst, proto: types.ProtoICMP, payload: p}
	if src.Is6() {
		m.proto = types.ProtoICMPv6
	}
	return m.checked(2, src.Is6())
}

// sum16 is the one's complement sum of RFC 1071.
func sum16(sum uint32, b []byte) uint16 {
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// put sends IP packets as they are from inside a namespace, in this order.
func put(t *testing.T, ns lab.Netns, packets ...[]byte) {
	t.Helper()
	err := ns.Do(func() error {
		for _, p := range packets {
			var family int
			var to unix.Sockaddr
			if p[0]>>4 == 6 {
				six := &unix.SockaddrInet6{Addr: [16]byte(p[24:40])}
				if six.Addr[0] == 0xff || six.Addr[0] == 0xfe {
					link, err := netlink.LinkByName("eth0")
					if err != nil {
						return err
					}
					six.ZoneId = uint32(link.Attrs().Index)
				}
				family, to = unix.AF_INET6, six
			} else {
				family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte(p[16:20])}
			}
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			err = unix.Sendto(fd, p, 0, to)
			unix.Close(fd)
			if err != nil {
				return fmt.Errorf("sending %x...: %w", p[:40], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("in %s: %v", ns, err)
	}
}

// seen is a packet that a tap saw.
type seen struct {
	out          bool // sent by the namespace, not to it
	src, dst     netip.Addr
	proto        types.Proto
	sport, dport uint16 // of a packet with a transport header
	icmp         uint8  // type
	id           uint32 // of a fragment
	offset       int    // of a fragment, in bytes
	payload      []byte // behind the network and fragment headers
}

func (s seen) String() string {
	return fmt.Sprintf("%s %s:%d to %s:%d, ICMP type %d, fragment %d at %d, %d bytes", s.proto, s.src, s.sport, s.dst, s.dport, s.icmp, s.id, s.offset, len(s.payload))
}

// tap is a packet socket on one link.
type tap struct {
	fd     int
	frames []seen
}

func newTap(t *testing.T, ns lab.Netns, link string) *tap {
	t.Helper()
	p := &tap{}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	err := ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
			return err
		}
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	})
	if err != nil {
		t.Fatalf("a tap on %s of %s: %v", link, ns, err)
	}
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

// read takes what has come since.
func (p *tap) read(t *testing.T) {
	t.Helper()
	buf := make([]byte, 65536)
	for {
		n, from, err := unix.Recvfrom(p.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			t.Fatalf("reading a tap: %v", err)
		}
		if s, ok := parseIP(buf[:n]); ok {
			s.out = from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
			p.frames = append(p.frames, s)
		}
	}
}

// all are the packets seen so far that match.
func (p *tap) all(t *testing.T, match func(seen) bool) (out []seen) {
	t.Helper()
	p.read(t)
	for _, s := range p.frames {
		if match(s) {
			out = append(out, s)
		}
	}
	return out
}

// flow matches incoming packets of a 5-tuple.
func flow(proto types.Proto, src, dst netip.AddrPort) func(seen) bool {
	return func(s seen) bool {
		return !s.out && s.proto == proto && netip.AddrPortFrom(s.src, s.sport) == src && netip.AddrPortFrom(s.dst, s.dport) == dst
	}
}

// incomingICMP matches messages of a type that came in.
func incomingICMP(src netip.Addr, kind uint8) func(seen) bool {
	return func(s seen) bool {
		return !s.out && (s.proto == types.ProtoICMP || s.proto == types.ProtoICMPv6) && s.src == src && s.icmp == kind
	}
}

func parseIP(b []byte) (s seen, ok bool) {
	fragment := uint16(0)
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		s.src, s.dst, s.proto = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), types.Proto(b[9])
		fragment = binary.BigEndian.Uint16(b[6:])
		s.id, s.offset = uint32(binary.BigEndian.Uint16(b[4:])), int(fragment&0x1fff)*8
		s.payload = append([]byte(nil), b[int(b[0]&15)*4:binary.BigEndian.Uint16(b[2:])]...)
	case len(b) >= 40 && b[0]>>4 == 6:
		s.src, s.dst, s.proto = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), types.Proto(b[6])
		rest := b[40:]
		if s.proto == 0 && len(rest) >= 8 { // hop-by-hop options, as listener reports have them
			s.proto, rest = types.Proto(rest[0]), rest[8*(1+int(rest[1])):]
		}
		if s.proto == 44 && len(rest) >= 8 {
			s.proto, s.id = types.Proto(rest[0]), binary.BigEndian.Uint32(rest[4:])
			s.offset, rest = int(binary.BigEndian.Uint16(rest[2:])&^7), rest[8:]
		}
		s.payload = append([]byte(nil), rest...)
	default:
		return s, false
	}
	if s.offset == 0 && len(s.payload) >= 4 {
		switch {
		case s.proto.HasPorts():
			s.sport, s.dport = binary.BigEndian.Uint16(s.payload), binary.BigEndian.Uint16(s.payload[2:])
		case s.proto == types.ProtoICMP || s.proto == types.ProtoICMPv6:
			s.icmp = s.payload[0]
		}
	}
	return s, true
}

// fence sends a datagram that policy allows the way of the packets before it
// and waits until the tap saw it: what did not come until then never comes.
func fence(t *testing.T, b *box.Box, from lab.Netns, at *tap, src, dst netip.AddrPort) {
	t.Helper()
	p := udpMessage(src, dst, []byte("fence"))
	before := len(at.all(t, flow(types.ProtoUDP, src, dst)))
	put(t, from, p.whole())
	b.Eventually("the fence "+src.String()+" to "+dst.String(), func() bool { return len(at.all(t, flow(types.ProtoUDP, src, dst))) > before })
}

// drops are the counters of dropped packets, by reason and direction.
func drops(t *testing.T, b *box.Box) map[drop.Reason][2]uint64 {
	t.Helper()
	m, err := metricsmap.Open(bpf.Root{Path: b.Record.BPFRoot})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	counts, err := m.Dump()
	if err != nil {
		t.Fatal(err)
	}
	out := map[drop.Reason][2]uint64{}
	for _, c := range counts {
		if c.Reason != metricsmap.ReasonForwarded {
			v := out[drop.Reason(c.Reason)]
			v[c.Direction] = c.Packets
			out[drop.Reason(c.Reason)] = v
		}
	}
	return out
}

// follow starts to record events and returns how to end that.
func follow(t *testing.T, b *box.Box) (stop func() []gen.Event) {
	t.Helper()
	rec, err := probe.Follow(t.Context(), b.Agent)
	if err != nil {
		t.Fatal(err)
	}
	return func() []gen.Event {
		t.Helper()
		_, events, err := rec.Stop()
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
}

// denialsOf are the events that deny a packet of a protocol.
func denialsOf(events []gen.Event, proto types.Proto) []gen.Event {
	return slices.DeleteFunc(events, func(e gen.Event) bool {
		f, ok := probe.FlowOf(e)
		return !ok || e.Verdict != gen.VerdictDeny || f.Proto != proto
	})
}

// denials are the events that deny a packet of a 5-tuple.
func denials(events []gen.Event, f lab.Flow) (out []gen.Event) {
	for _, e := range events {
		if got, ok := probe.FlowOf(e); ok && got == f && e.Verdict == gen.VerdictDeny {
			out = append(out, e)
		}
	}
	return out
}

// letters probes every address and port of a target from a source's address of
// the same family and returns the letter of each cell, in that order.
func letters(t *testing.T, b *box.Box, from lab.Source, name string, to []netip.Addr, ports ...lab.Port) string {
	t.Helper()
	var results []lab.Result
	for _, dst := range to {
		for _, src := range from.Addrs {
			for _, port := range ports {
				if src.Is4() == dst.Is4() {
					f := lab.Flow{Proto: port.Proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, port.Port)}
					results = append(results, lab.Result{From: from, To: lab.Target{Name: name, Addr: dst, Port: port}, Flow: f})
				}
			}
		}
	}
	denials, err := probe.Send(t.Context(), b.Agent, results, lab.ProbeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, r := range results {
		out.WriteString(lab.Letter(r, denials[r.Flow]))
	}
	return out.String()
}

func podSource(p *lab.AttachedPod) lab.Source {
	return lab.Source{Name: p.Key(), Netns: p.Netns, Addrs: p.Addresses}
}

func hostSource(h *lab.AttachedHost) lab.Source {
	return lab.Source{Name: h.Name, Netns: h.Netns, Addrs: h.Addresses}
}

// isolate is a NetworkPolicy of the pod with that name; the spec goes on behind the selector.
func isolate(pod, spec string) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: x}\nspec: {podSelector: {matchLabels: {pod: %s}}, %s}\n---\n", pod, pod, spec)
}

// endpointOf is the pod's endpoint as the agent lists it.
func endpointOf(t *testing.T, b *box.Box, p *lab.AttachedPod) gen.Endpoint {
	t.Helper()
	e, err := b.Agent.Endpoint(t.Context(), "pod-name:"+p.Key())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// dial opens a TCP connection from inside a namespace that lasts as long as the test.
func dial(t *testing.T, ns lab.Netns, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	err := ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	})
	if err != nil {
		t.Fatalf("connecting to %s: %v", to, err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// word sends a word over a connection and waits for it to come back.
func word(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := conn.Write([]byte("word"))
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	if err != nil {
		t.Errorf("the connection to %s: %v", conn.RemoteAddr(), err)
	}
}

// arrivals are the datagrams that sockets of a namespace got.
type arrivals struct {
	mu  sync.Mutex
	got []string
}

func listenUDP(t *testing.T, ns lab.Netns, ports ...uint16) *arrivals {
	t.Helper()
	a := &arrivals{}
	for _, network := range []string{"udp4", "udp6"} {
		for _, port := range ports {
			var conn *net.UDPConn
			err := ns.Do(func() (err error) {
				conn, err = net.ListenUDP(network, &net.UDPAddr{Port: int(port)})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			go func() {
				buf := make([]byte, 65536)
				for {
					n, _, err := conn.ReadFromUDP(buf)
					if err != nil {
						return
					}
					a.mu.Lock()
					a.got = append(a.got, string(buf[:n]))
					a.mu.Unlock()
				}
			}()
		}
	}
	return a
}

// take returns what came since it was asked last.
func (a *arrivals) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.got
	a.got = nil
	return got
}

// ping sends one echo request from inside a namespace and wants the answer.
func ping(t *testing.T, ns lab.Netns, to netip.Addr) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ping", "-c1", "-W3", to.String())
	var out []byte
	err := ns.Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		t.Errorf("ping %s: %v: %s", to, err, out)
	}
}

// flushNeighbours forgets every neighbour of a namespace.
func flushNeighbours(t *testing.T, ns lab.Netns) {
	t.Helper()
	err := ns.Do(func() error {
		all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, n := range all {
			err = errors.Join(err, netlink.NeighDel(&n))
		}
		return err
	})
	if err != nil {
		t.Fatalf("flushing the neighbours of %s: %v", ns, err)
	}
}

// linkLocal is the link-local address of a pod's eth0.
func linkLocal(t *testing.T, ns lab.Netns) (a netip.Addr) {
	t.Helper()
	err := ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, one := range addrs {
			if one.IP.IsLinkLocalUnicast() {
				a, _ = netip.AddrFromSlice(one.IP)
			}
		}
		return err
	})
	if err != nil || !a.IsValid() {
		t.Fatalf("the link-local address in %s: %s, %v", ns, a, err)
	}
	return a
}

// listenRA counts the router advertisements that the stack of a namespace gets.
func listenRA(t *testing.T, ns lab.Netns) (stop func() (n int)) {
	t.Helper()
	fd := -1
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func() (n int) {
		buf := make([]byte, 2048)
		for {
			size, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return n
			}
			if size > 0 && buf[0] == 134 {
				n++
			}
		}
	}
}

// rxPackets is how many packets a link has received.
func rxPackets(t *testing.T, ns lab.Netns, link string) (n uint64) {
	t.Helper()
	err := ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err == nil {
			n = l.Attrs().Statistics.RxPackets
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
