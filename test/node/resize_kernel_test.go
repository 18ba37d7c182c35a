package node

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// Nothing but what they opened themselves reaches the client or leaves the web pod:
// without its entry an answer is lost.
const onlyAnswers = `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web-egress, namespace: x}
spec: {podSelector: {matchLabels: {pod: web}}, policyTypes: [Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client-ingress, namespace: x}
spec: {podSelector: {matchLabels: {pod: client}}, policyTypes: [Ingress]}
`

// changing is a node whose flows and events get room of other sizes while traffic
// goes on: two connections, a stream of datagrams, and new flows all the time.
type changing struct {
	*box.Box
	t           *testing.T
	web, client *lab.AttachedPod
	sized       int    // how often
	fresh       *asker // opens new flows
	late        func() // sends an answer on a flow on which nothing is sent otherwise
	done        func() // stops the traffic and counts
}

func startChanging(t *testing.T) *changing {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	b.Write("answers.yaml", onlyAnswers)
	b.InForce(3)
	c := &changing{Box: b, t: t, web: web, client: client}
	c.resize()
	echoAnswers(t, web.Netns, 7)
	sink, silent := newSink(t, web.Netns, udp9), newSink(t, web.Netns, 10)
	stopHammer := hammer(t, client.Netns, netip.AddrPortFrom(web.Addresses[0], udp9))
	stopDenied := hammer(t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], 10))
	var flows []func() (int, error)
	for _, a := range web.Addresses {
		flows = append(flows, talk(t, client.Netns, netip.AddrPortFrom(a, 80)))
	}
	c.late = lateAnswers(t, client.Netns, web.Netns, netip.AddrPortFrom(web.Addresses[0], 11))
	c.Eventually("the connections are in use", func() bool { return c.carried() > 100 })
	c.fresh = ask(t, client.Netns, netip.AddrPortFrom(web.Addresses[0], 7))
	c.done = func() {
		t.Helper()
		words := 0
		for _, stop := range flows {
			n, err := stop()
			if err != nil || n < 10 {
				t.Errorf("a connection: %d words, %v", n, err)
			}
			words += n
		}
		asked := c.fresh.stop()
		sent := stopHammer()
		b.Eventually("all datagrams arrive", func() bool { return int(sink.count.Load()) == sent })
		sink.close()
		denied := stopDenied()
		if got := silent.close(); denied == 0 || got != 0 {
			t.Errorf("%d of %d denied datagrams arrived", got, denied)
		}
		t.Logf("%d words, %d datagrams, %d new flows, %d denied datagrams", words, sent, asked, denied)
	}
	return c
}

// resize gives the agent's next start other sizes than it has.
func (c *changing) resize() (flows, ring uint32) {
	flows, ring = []uint32{8192, 16384, 12000}[c.sized%3], []uint32{1 << 21, 1 << 22}[c.sized%2]
	c.sized++
	c.Record.AgentArgs = append(c.Record.AgentArgs, fmt.Sprintf("--conntrack-entries=%d", flows), fmt.Sprintf("--event-buffer=%d", ring))
	return flows, ring
}

// settled waits until no former map is left, which a flow that nothing was sent on
// outlives.
func (c *changing) settled() {
	c.t.Helper()
	c.Eventually("the former maps are gone", func() bool {
		pins, err := os.ReadDir(bpf.Root{Path: c.Record.BPFRoot}.Map(""))
		for _, p := range pins {
			if strings.HasSuffix(p.Name(), "_former") || strings.HasSuffix(p.Name(), "_new") {
				return false
			}
		}
		return err == nil
	})
	c.late()
}

// sizes checks the sizes of the maps in use.
func (c *changing) sizes(flows, ring uint32) {
	c.t.Helper()
	all, err := c.Agent.Maps(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	want := map[string]uint32{"weir_ct4": flows, "weir_ct6": flows, "weir_events": ring}
	for _, m := range all.Maps {
		if w, ok := want[m.Name]; ok && m.MaxEntries != w {
			c.t.Errorf("%s has room for %d, want %d", m.Name, m.MaxEntries, w)
		}
	}
}

// carried is how many packets the connections to the web pod have carried.
func (c *changing) carried() (sum uint64) {
	c.t.Helper()
	for _, f := range []ctmap.Family{ctmap.IPv4, ctmap.IPv6} {
		m, err := ctmap.Open(bpf.Root{Path: c.Record.BPFRoot}, f)
		if err != nil {
			c.t.Fatal(err)
		}
		flows, err := m.Dump()
		m.Close()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, f := range flows {
			if f.Responder.Port() == 80 && types.Proto(f.Protocol) == types.ProtoTCP {
				sum += f.Packets
			}
		}
	}
	return sum
}

// Another size of the tables of connections and of the ring of events, larger and
// smaller, takes effect at a restart: no packet of a flow is lost, old or new, its
// counters go on, and no event is told twice or missing.
func TestOtherSizesOfFlowsAndEventsLoseNothing(t *testing.T) {
	c := startChanging(t)
	for range 3 {
		before := c.carried()
		if err := c.StopAgent(); err != nil {
			t.Fatal(err)
		}
		flows, ring := c.resize()
		restart(t, c.Box)
		stop, first := follow(t, c.Box), c.fresh.next.Load()
		c.settled()
		c.sizes(flows, ring)
		c.Eventually("new flows", func() bool { return c.fresh.next.Load() > first+300 })
		last := c.fresh.next.Load()
		told := map[uint16]map[gen.Direction]int{}
		for _, e := range stop() {
			if f, ok := probe.FlowOf(e); ok && f.Dst.Port() == 7 {
				if told[f.Src.Port()] == nil {
					told[f.Src.Port()] = map[gen.Direction]int{}
				}
				told[f.Src.Port()][e.Direction]++
			}
		}
		for port := first; port < last; port++ {
			if d := told[uint16(port)]; d[gen.DirectionEgress] != 1 || d[gen.DirectionIngress] != 1 {
				t.Errorf("of the flow from port %d, of %d to %d, the events are %v", port, first, last, d)
				break
			}
		}
		if after := c.carried(); after < before {
			t.Errorf("the connections had carried %d packets, and then %d", before, after)
		}
	}
	c.done()
}

// Agents that die at any point of such a change lose nothing either, and the next
// one goes on.
func TestKillsDuringAChangeOfSizesLoseNoTraffic(t *testing.T) {
	c := startChanging(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	before, unfinished := c.carried(), 0
	var flows, ring uint32
	for range 12 {
		if err := c.KillAgent(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(bpf.Root{Path: c.Record.BPFRoot}.Map(ctmap.Name6 + "_former")); err == nil {
			unfinished++
		}
		flows, ring = c.resize()
		if err := c.StartAgent(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
	}
	if unfinished == 0 {
		t.Error("no change was interrupted: the test proves nothing")
	}
	for range 2 { // what waited for the end of another change is made at the next start
		if err := c.StopAgent(); err != nil {
			t.Fatal(err)
		}
		restart(t, c.Box)
		c.settled()
	}
	c.sizes(flows, ring)
	if after := c.carried(); after < before {
		t.Errorf("the connections had carried %d packets, and then %d", before, after)
	}
	c.done()
}

// asker opens a new flow every few milliseconds and waits for its answer.
type asker struct {
	next atomic.Int64 // source port of the next flow
	stop func() (asked int)
}

const firstPort = 10000

func ask(t *testing.T, ns lab.Netns, to netip.AddrPort) *asker {
	a := &asker{}
	a.next.Store(firstPort)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := ns.Do(func() error {
			buf := make([]byte, 1)
			for a.next.Load() < 65000 {
				select {
				case <-quit:
					return nil
				case <-time.After(2 * time.Millisecond):
				}
				conn, err := net.DialUDP("udp", &net.UDPAddr{Port: int(a.next.Load())}, net.UDPAddrFromAddrPort(to))
				if err != nil {
					return err
				}
				conn.SetDeadline(time.Now().Add(time.Second))
				if _, err = conn.Write(buf); err == nil {
					_, err = conn.Read(buf)
				}
				conn.Close()
				if err != nil {
					t.Errorf("the answer to port %d: %v", a.next.Load(), err)
				}
				a.next.Add(1)
			}
			return nil
		})
		if err != nil {
			t.Errorf("asking from %s: %v", ns, err)
		}
	})
	a.stop = sync.OnceValue(func() int {
		close(quit)
		wg.Wait()
		return int(a.next.Load()) - firstPort
	})
	t.Cleanup(func() { a.stop() })
	return a
}

// lateAnswers opens a flow. What it returns sends an answer on it.
func lateAnswers(t *testing.T, client, server lab.Netns, at netip.AddrPort) func() {
	t.Helper()
	var from, to *net.UDPConn
	err := server.Do(func() (err error) { from, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err })
	if err == nil {
		err = client.Do(func() (err error) { to, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at)); return err })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close(); to.Close() })
	buf := make([]byte, 1)
	if _, err = to.Write(buf); err != nil {
		t.Fatal(err)
	}
	from.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, peer, err := from.ReadFromUDPAddrPort(buf)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		to.SetDeadline(time.Now().Add(5 * time.Second))
		_, err := from.WriteToUDPAddrPort(buf, peer)
		if err == nil {
			_, err = to.Read(buf)
		}
		if err != nil {
			t.Errorf("a late answer: %v", err)
		}
	}
}

// echoAnswers sends every datagram that comes to a port of a namespace back.
func echoAnswers(t *testing.T, ns lab.Netns, port int) {
	t.Helper()
	var conn *net.UDPConn
	err := ns.Do(func() (err error) { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from) // one that is lost is noticed by who asked
		}
	}()
}
