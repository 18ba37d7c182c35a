package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// outHost is a host outside with the addresses 203.0.113.N and 2001:db8::N.
func outHost(name string, n int) lab.Host {
	return lab.Host{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n))}}
}

// nodeYAML is the Node object of a host.
func nodeYAML(h lab.Host) string {
	var addrs []string
	for _, a := range h.Addresses {
		addrs = append(addrs, fmt.Sprintf("{type: InternalIP, address: '%s'}", a))
	}
	return fmt.Sprintf("---\napiVersion: v1\nkind: Node\nmetadata: {name: %s}\nstatus: {addresses: [%s]}\n", h.Name, strings.Join(addrs, ", "))
}

// namespaceYAML is a Namespace object with a label team.
func namespaceYAML(name, team string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {team: %s}}\n", name, team)
}

// policyYAML is a NetworkPolicy for the pod of that name.
func policyYAML(namespace, name, pod, spec string) string {
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: %s}\nspec: {podSelector: {matchLabels: {pod: %s}}, %s}\n",
		name, namespace, pod, spec)
}

// apply puts policies in force once those from before are gone: InForce knows
// policies by their number only.
func apply(b *box.Box, policies ...string) {
	b.Write("policies.yaml", "")
	b.InForce(0)
	b.Write("policies.yaml", strings.Join(policies, ""))
	b.InForce(len(policies))
}

func podEnd(p *lab.AttachedPod) lab.Source {
	return lab.Source{Name: p.Key(), Netns: p.Netns, Addrs: p.Addresses}
}

// addPod attaches a pod of the namespace that serves the port.
func addPod(b *box.Box, namespace, name string, ports ...lab.Port) lab.Source {
	return podEnd(b.Add(lab.Pod{Namespace: namespace, Name: name, Ports: ports}))
}

// hostEnds serves the ports on every host outside.
func hostEnds(b *box.Box, ports ...lab.Port) map[string]lab.Source {
	out := map[string]lab.Source{}
	for _, h := range b.Record.Hosts {
		b.Serve(h.Netns, ports...)
		out[h.Name] = lab.Source{Name: h.Name, Netns: h.Netns, Addrs: h.Addresses}
	}
	return out
}

// nodeEnd is the node with its addresses in the pools and, where there are hosts
// outside, those towards them.
func nodeEnd(b *box.Box) lab.Source {
	n := lab.Source{Name: "node", Netns: b.Node(), Addrs: slices.Clone(b.Record.NodeAddrs)}
	if len(b.Record.Hosts) > 0 {
		for _, a := range b.Record.Hosts[0].Addresses {
			n.Addrs = append(n.Addrs, lab.NodeAddr(a))
		}
	}
	return n
}

// only4 and only6 are an end with the addresses of one family.
func only4(s lab.Source) lab.Source { return family(s, true) }
func only6(s lab.Source) lab.Source { return family(s, false) }

func family(s lab.Source, is4 bool) lab.Source {
	s.Addrs = slices.DeleteFunc(slices.Clone(s.Addrs), func(a netip.Addr) bool { return a.Is4() != is4 })
	return s
}

// cell is what must become of a probe from every address of one end to every
// address of the same family of the other.
type cell struct {
	from, to lab.Source
	port     lab.Port
	want     string       // a letter of pkg/lab
	by       gen.RuleKind // an event of the flow must name such a rule; empty: any
	who      uint32       // and this identity as its source; 0: any
}

// verdicts sends the probes of all cells and reports every one that is not as it
// must be. A denied one needs its event.
func verdicts(t *testing.T, b *box.Box, when string, cells ...cell) {
	t.Helper()
	var results []lab.Result
	var asked []cell
	for _, c := range cells {
		for _, dst := range c.to.Addrs {
			for _, src := range c.from.Addrs {
				if src.Is4() == dst.Is4() {
					flow := lab.Flow{Proto: c.port.Proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, c.port.Port)}
					results, asked = append(results, lab.Result{From: c.from, Flow: flow}), append(asked, c)
				}
			}
		}
	}
	rec, err := probe.Follow(t.Context(), b.Agent)
	if err != nil {
		t.Fatal(err)
	}
	denials, err := probe.Send(t.Context(), b.Agent, results, lab.ProbeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, events, err := rec.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		c := asked[i]
		if got := lab.Letter(r, denials[r.Flow]); got != c.want {
			t.Errorf("%s: %s -> %s (%s): want %q, got %q (%v; %v)", when, c.from.Name, c.to.Name, r.Flow.Dst, c.want, got, r.Err, denials[r.Flow])
			continue
		}
		if c.by != "" && !slices.ContainsFunc(events, func(e gen.Event) bool {
			f, ok := probe.FlowOf(e)
			return ok && f == r.Flow && e.Rule.Kind == c.by && (c.who == 0 || e.Source.Identity == c.who)
		}) {
			t.Errorf("%s: %s -> %s (%s): no event names a rule of kind %q and source identity %d", when, c.from.Name, c.to.Name, r.Flow.Dst, c.by, c.who)
		}
	}
	if len(results) == 0 {
		t.Errorf("%s: nothing was sent: the test proves nothing", when)
	}
}

// serveHTTP answers every GET in a namespace until the test ends.
func serveHTTP(t *testing.T, ns lab.Netns, port uint16) {
	t.Helper()
	var ln net.Listener
	err := ns.Do(func() (err error) {
		ln, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "alive") }), ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(ln)
	t.Cleanup(func() { s.Close() })
}

// getHTTP asks for a page from an address of a namespace.
func getHTTP(ctx context.Context, ns lab.Netns, src netip.Addr, dst netip.AddrPort, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: src.AsSlice()}}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+dst.String()+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || string(body) != "alive") {
		err = fmt.Errorf("%s says %s %q", dst, resp.Status, body)
	}
	return err
}

// probing is a pod that answers TCP and HTTP, its node and another one.
type probing struct{ pod, node, far lab.Source }

const pagesPort = 8080

// probed starts a node with a pod and another node outside.
func probed(t *testing.T, env *testutils.Env, enforcement string) (*box.Box, probing) {
	t.Helper()
	remote := outHost("far", 77)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{remote}, AgentFlags: []string{"--policy-enforcement=" + enforcement},
		Files: map[string]string{"pods.yaml": box.PodYAML("x", "p1", "", "") + nodeYAML(remote)}})
	p := probing{pod: addPod(b, "x", "p1", http80), node: nodeEnd(b), far: hostEnds(b)["far"]}
	serveHTTP(t, p.pod.Netns, pagesPort)
	return b, p
}

// onlyTheNode checks that the pod's own node gets in, by its rule, and the other
// one does not, by a rule of the kind.
func (p probing) onlyTheNode(t *testing.T, b *box.Box, when string, denial gen.RuleKind) {
	t.Helper()
	verdicts(t, b, when, cell{from: p.node, to: p.pod, port: http80, want: ".", by: gen.RuleLocalNode, who: uint32(identity.ReservedHost)},
		cell{from: p.far, to: p.pod, port: http80, want: "I", by: denial, who: uint32(identity.ReservedRemoteNode)})
	p.pages(t, when, p.node, true)
	p.pages(t, when, p.far, false)
}

// pages asks the pod for a page from every address of an end.
func (p probing) pages(t *testing.T, when string, from lab.Source, want bool) {
	t.Helper()
	timeout := 5 * time.Second
	if !want {
		timeout = 700 * time.Millisecond
	}
	for _, dst := range p.pod.Addrs {
		for _, src := range from.Addrs {
			if src.Is4() != dst.Is4() {
				continue
			}
			if err := getHTTP(t.Context(), from.Netns, src, netip.AddrPortFrom(dst, pagesPort), timeout); (err == nil) != want {
				t.Errorf("%s: GET from %s (%s) to %s: %v", when, from.Name, src, dst, err)
			}
		}
	}
}

// echo is an ICMP echo request or reply.
type echo struct {
	reply   bool
	id, seq uint16
}

// icmpEnd sends echoes from an address and keeps those that arrive at it.
type icmpEnd struct {
	addr  netip.Addr
	proto types.Proto
	conn  *net.IPConn

	mu    sync.Mutex
	heard map[echo]int
}

func newICMPEnd(t *testing.T, ns lab.Netns, addr netip.Addr) *icmpEnd {
	t.Helper()
	e := &icmpEnd{addr: addr, proto: types.ProtoICMP, heard: map[echo]int{}}
	network := "ip4:1"
	if addr.Is6() {
		e.proto, network = types.ProtoICMPv6, "ip6:58"
	}
	err := ns.Do(func() (err error) {
		e.conn, err = net.ListenIP(network, &net.IPAddr{IP: addr.AsSlice()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := e.conn.ReadFromIP(buf)
			if err != nil {
				return
			}
			if n < 8 || buf[0] != e.kind(false) && buf[0] != e.kind(true) {
				continue
			}
			e.mu.Lock()
			e.heard[echo{buf[0] == e.kind(true), binary.BigEndian.Uint16(buf[4:]), binary.BigEndian.Uint16(buf[6:])}]++
			e.mu.Unlock()
		}
	}()
	return e
}

// kind is the ICMP type of a request or reply (RFC 792, RFC 4443 section 4).
func (e *icmpEnd) kind(reply bool) byte {
	switch {
	case e.proto == types.ProtoICMP && reply:
		return 0
	case e.proto == types.ProtoICMP:
		return 8
	case reply:
		return 129
	}
	return 128
}

func (e *icmpEnd) send(t *testing.T, to *icmpEnd, m echo) {
	t.Helper()
	b := make([]byte, 16)
	b[0] = e.kind(m.reply)
	binary.BigEndian.PutUint16(b[4:], m.id)
	binary.BigEndian.PutUint16(b[6:], m.seq)
	if e.proto == types.ProtoICMP { // the kernel fills in that of ICMPv6 (RFC 3542 section 3.1)
		binary.BigEndian.PutUint16(b[2:], internetChecksum(b))
	}
	if _, err := e.conn.WriteToIP(b, &net.IPAddr{IP: to.addr.AsSlice()}); err != nil {
		t.Fatalf("sending %+v to %s: %v", m, to.addr, err)
	}
}

func (e *icmpEnd) times(m echo) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard[m]
}

// internetChecksum is that of RFC 1071, of an even number of bytes.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
