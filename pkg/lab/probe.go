package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/types"
)

// Source sends probes: a pod, an outside host or the node.
type Source struct {
	Name  string
	Netns Netns
	Addrs []netip.Addr
}

// addr is the source's first address of a family, if it has one.
func (s Source) addr(is4 bool) (netip.Addr, bool) {
	for _, a := range s.Addrs {
		if a.Is4() == is4 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// Target is one port at one address.
type Target struct {
	Name string // of the pod or host
	Addr netip.Addr
	Port Port
}

// Column is the target's name in a table: "shop/api:8080/TCP".
func (t Target) Column() string { return t.Name + ":" + t.Port.String() }

// Flow is a probe's 5-tuple, as events carry it.
type Flow struct {
	Proto    types.Proto
	Src, Dst netip.AddrPort
}

// Result is what became of one probe.
type Result struct {
	From   Source
	To     Target
	Flow   Flow
	Passed bool
	Err    error // why it did not pass, or what could not be tried
}

// DefaultProbeTimeout is how long one probe waits where the caller does not say.
const DefaultProbeTimeout = 700 * time.Millisecond

// ProbeOptions bounds the probing.
type ProbeOptions struct {
	Timeout  time.Duration // of one probe; default DefaultProbeTimeout
	Parallel int           // probes at the same time; default 48
	// Denied, if set, gives a channel per flow; once it is closed the probe is
	// not waited for any longer.
	Denied func(Flow) <-chan struct{}
}

// Sources lists the lab's pods, hosts and node.
func (l *Lab) Sources() []Source {
	var out []Source
	for _, p := range l.Record.Pods {
		out = append(out, Source{p.Key(), p.Netns, p.Addresses})
	}
	for _, h := range l.Record.Hosts {
		out = append(out, Source{h.Name, h.Netns, h.Addresses})
	}
	return append(out, Source{"node", l.Node(), l.Record.NodeAddrs})
}

// Source finds a pod by namespace/name, or by name where it is unique, a host
// by its name, or the node.
func (l *Lab) Source(name string) (Source, error) {
	sources := l.Sources()
	names := make([]string, len(sources))
	for i, s := range sources {
		if s.Name == name {
			return s, nil
		}
		names[i] = s.Name
	}
	for _, p := range l.Record.Pods {
		if p.Name == name {
			p, err := l.Pod(name)
			if err != nil {
				return Source{}, err
			}
			return Source{p.Key(), p.Netns, p.Addresses}, nil
		}
	}
	return Source{}, fmt.Errorf("nothing in the lab has the name %q; it has %s", name, strings.Join(names, ", "))
}

// Targets lists every declared port at every address.
func (l *Lab) Targets() []Target {
	var out []Target
	add := func(name string, addrs []netip.Addr, ports []Port) {
		for _, a := range addrs {
			for _, p := range ports {
				out = append(out, Target{name, a, p})
			}
		}
	}
	for _, p := range l.Record.Pods {
		add(p.Key(), p.Addresses, p.Ports)
	}
	for _, h := range l.Record.Hosts {
		add(h.Name, h.Addresses, h.Ports)
	}
	return out
}

// Matrix lists one exchange from every source to every target that both have a
// family for, except to itself and between unmanaged ends, to be sent.
func (l *Lab) Matrix(sources []Source, targets []Target) []Result {
	managed := map[string]bool{}
	for _, p := range l.Record.Pods {
		managed[p.Key()] = true
	}
	var results []Result
	for _, s := range sources {
		for _, t := range targets {
			if s.Name == t.Name || !managed[s.Name] && !managed[t.Name] {
				continue
			}
			if src, ok := s.addr(t.Addr.Is4()); ok {
				flow := Flow{t.Port.Proto, netip.AddrPortFrom(src, 0), netip.AddrPortFrom(t.Addr, t.Port.Port)}
				results = append(results, Result{From: s, To: t, Flow: flow})
			}
		}
	}
	return results
}

// SendProbes sends the flows of the results and fills in what became of them.
// A source port of 0 is replaced by one that no other probe of the call uses.
func SendProbes(ctx context.Context, results []Result, opt ProbeOptions) error {
	if opt.Timeout == 0 {
		opt.Timeout = DefaultProbeTimeout
	}
	if opt.Parallel == 0 {
		opt.Parallel = 48
	}
	ports := newPorts()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(opt.Parallel)
	for i := range results {
		r := &results[i]
		if r.Flow.Src.Port() == 0 {
			r.Flow.Src = netip.AddrPortFrom(r.Flow.Src.Addr(), ports.next())
		}
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if opt.Denied != nil {
				denied := opt.Denied(r.Flow)
				go func() {
					select {
					case <-denied:
						cancel()
					case <-ctx.Done():
					}
				}()
			}
			r.Err = r.From.Netns.Do(func() error { return exchange(ctx, r.Flow, opt.Timeout) })
			r.Passed = r.Err == nil
			return nil
		})
	}
	return g.Wait()
}

// ports hands out source ports from a random start in 20000 to 59999, so that
// a second run does not meet connections that linger from the first.
type ports struct {
	mu   sync.Mutex
	last uint16
}

func newPorts() *ports {
	var b [2]byte
	rand.Read(b[:])
	return &ports{last: (uint16(b[0])<<8 | uint16(b[1])) % 40000}
}

func (p *ports) next() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = (p.last + 1) % 40000
	return 20000 + p.last
}

// exchange sends a random word and wants it back, from the calling thread's
// namespace. It ends early with ctx.
func exchange(ctx context.Context, f Flow, timeout time.Duration) error {
	if f.Proto == types.ProtoSCTP {
		return probeSCTP(ctx, f.Dst, f.Src.Port(), timeout)
	}
	network, local := "tcp", net.Addr(net.TCPAddrFromAddrPort(f.Src))
	if f.Proto == types.ProtoUDP {
		network, local = "udp", net.UDPAddrFromAddrPort(f.Src)
	}
	d := net.Dialer{Timeout: timeout, LocalAddr: local, Control: reuseAddr}
	conn, err := d.DialContext(ctx, network, f.Dst.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if c, ok := conn.(*net.TCPConn); ok {
		c.SetLinger(0) // a reset at the end, so that the port is free at once
	}
	conn.SetDeadline(time.Now().Add(timeout))
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })()
	var word, back [16]byte
	rand.Read(word[:])
	if _, err := conn.Write(word[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, back[:]); err != nil {
		return err
	}
	if word != back {
		return fmt.Errorf("%s answered with other bytes", f.Dst)
	}
	return nil
}

// reuseAddr lets a probe use a source port on which an earlier connection to
// another target is still in TIME_WAIT.
func reuseAddr(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(failed, err)
}
