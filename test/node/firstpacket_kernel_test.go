package node

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// pods of a first-packet test, all of which run one after the other.
const firstPackets = 200

const udp9 = 9

// outsider is the host outside of these tests.
var outsider = lab.Host{Name: "outsider", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.9")}}

const closedAndOpen = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: x}
spec: {podSelector: {matchLabels: {role: closed}}, policyTypes: [Ingress, Egress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: open, namespace: x}
spec: {podSelector: {matchLabels: {role: open}}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}
`

// crowd is a node whose pods closed-N and open-N exist as objects.
func crowd(t *testing.T, env *testutils.Env) *box.Box {
	var pods strings.Builder
	for i := range firstPackets {
		pods.WriteString(box.PodYAML("x", fmt.Sprintf("closed-%d", i), "role=closed", ""))
		pods.WriteString(box.PodYAML("x", fmt.Sprintf("open-%d", i), "role=open", ""))
	}
	pods.WriteString(box.PodYAML("x", "peer", "role=free", ""))
	return box.Start(t, box.Options{BPFRoot: env.BPFRoot, IPv6: "none", Hosts: []lab.Host{outsider}, Files: map[string]string{
		"pods.yaml": pods.String(), "policies.yaml": closedAndOpen,
	}})
}

func prepare(t *testing.T, b *box.Box, name string, i int, ips ...netip.Addr) *lab.AttachedPod {
	t.Helper()
	a, err := b.PreparePod(lab.Pod{Namespace: "x", Name: fmt.Sprintf("%s-%d", name, i), IPs: ips})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// attach calls ADD and lets the hammers go on for a moment.
func attach(t *testing.T, b *box.Box, a *lab.AttachedPod) {
	t.Helper()
	if err := b.Attach(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	time.Sleep(15 * time.Millisecond)
}

func detach(t *testing.T, b *box.Box, a *lab.AttachedPod) {
	t.Helper()
	if err := b.DelPod(t.Context(), a.Key()); err != nil {
		t.Fatal(err)
	}
}

func TestB32NoFirstPacketLeavesAClosedPod(t *testing.T) {
	env := testutils.Kernel(t)
	b := crowd(t, env)
	peer := b.Add(lab.Pod{Namespace: "x", Name: "peer"})
	targets := []netip.Addr{peer.Addresses[0], outsider.Addresses[0]}
	sinks := []*sink{newSink(t, peer.Netns, udp9), newSink(t, b.Record.Hosts[0].Netns, udp9)}
	sent := 0
	for i := range firstPackets {
		a := prepare(t, b, "closed", i)
		stop := hammer(t, a.Netns, netip.AddrPortFrom(targets[i%2], udp9))
		attach(t, b, a)
		sent += stop()
		detach(t, b, a)
	}
	for i, s := range sinks {
		if n := s.count.Load(); n != 0 {
			t.Errorf("%d datagrams reached %s", n, targets[i])
		}
	}
	if sent == 0 {
		t.Error("nothing was sent: the test proves nothing")
	}
	a := prepare(t, b, "open", 0) // an open pod's do arrive
	stop := hammer(t, a.Netns, netip.AddrPortFrom(targets[0], udp9))
	attach(t, b, a)
	b.Eventually("datagrams of an open pod arrive", func() bool { return sinks[0].count.Load() > 0 })
	stop()
	for _, s := range sinks {
		s.close()
	}
}

func TestB32NoFirstPacketReachesAClosedPod(t *testing.T) {
	env := testutils.Kernel(t)
	b := crowd(t, env)
	peer := b.Add(lab.Pod{Namespace: "x", Name: "peer"})
	sources := []lab.Netns{peer.Netns, b.Record.Hosts[0].Netns}
	arrived, reused := 0, 0
	for i := range firstPackets {
		addr := netip.AddrFrom4([4]byte{10, 78, 1, byte(1 + i%250)})
		stop := hammer(t, sources[i%2], netip.AddrPortFrom(addr, udp9))
		if i%4 < 2 { // the address belonged to an open pod a moment ago
			before := prepare(t, b, "open", i, addr)
			s := newSink(t, before.Netns, udp9)
			attach(t, b, before)
			b.Eventually("datagrams reach the open pod", func() bool { return s.count.Load() > 0 })
			detach(t, b, before)
			reused++
			s.close()
		}
		a := prepare(t, b, "closed", i, addr)
		s := newSink(t, a.Netns, udp9)
		attach(t, b, a)
		stop()
		arrived += s.close()
		detach(t, b, a)
	}
	if arrived != 0 || reused == 0 {
		t.Errorf("%d datagrams reached closed pods (%d of them on a just-freed address)", arrived, reused)
	}
}

func TestB32NoAllowedFlowIsCutWhenRulesAttach(t *testing.T) {
	env := testutils.Kernel(t)
	b := crowd(t, env)
	peer := b.Add(lab.Pod{Namespace: "x", Name: "peer", Ports: []lab.Port{http80}})
	for i := range 50 {
		a := prepare(t, b, "open", i)
		done := make(chan error, 1)
		go func() {
			done <- a.Netns.Do(func() error { return keepTalking(netip.AddrPortFrom(peer.Addresses[0], 80).String()) })
		}()
		attach(t, b, a)
		if err := <-done; err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
		detach(t, b, a)
	}
}

// keepTalking connects as soon as it can and then wants every word back.
func keepTalking(addr string) error {
	var conn net.Conn
	var err error
	for range 5000 {
		if conn, err = net.DialTimeout("tcp4", addr, time.Second); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("never connected: %w", err)
	}
	defer conn.Close()
	buf := make([]byte, 1)
	for n := range 50 {
		conn.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := conn.Write([]byte{byte(n)}); err != nil {
			return fmt.Errorf("after %d words: %w", n, err)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return fmt.Errorf("after %d words: %w", n, err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
