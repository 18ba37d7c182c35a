package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/types"
)

const (
	patience = 4 * time.Second        // for an answer or a denial
	resend   = 700 * time.Millisecond // until what got neither is sent again
	look     = 4                      // milliseconds between two looks at the denials
)

// exchange is one connection: what became of it.
type exchange struct {
	from   lab.Source
	flow   lab.Flow
	passed bool // the receiver answered
	denied sides
}

// sides is a set of directions.
type sides uint8

const (
	deniedIngress sides = 1 << iota
	deniedEgress
)

// letter is the cell of an exchange; "?" without answer and denial, "!" with both.
func (e *exchange) letter() byte {
	switch {
	case e.passed && e.denied != 0:
		return '!'
	case e.passed:
		return '.'
	}
	return "?IEB"[e.denied]
}

// denialLog is what the agent tells, by flow.
type denialLog struct {
	mu   sync.Mutex
	by   map[lab.Flow]sides
	lost uint64
	stop context.CancelFunc
	done chan error
}

// followDenials returns once the agent has subscribed it.
func followDenials(ctx context.Context, agent *client.Client) (*denialLog, error) {
	ctx, stop := context.WithCancel(ctx)
	d := &denialLog{by: map[lab.Flow]sides{}, stop: stop, done: make(chan error, 1)}
	started, deny := make(chan struct{}), gen.VerdictDeny
	go func() {
		d.done <- agent.Monitor(ctx, gen.GetMonitorParams{Verdict: &deny}, func() { close(started) }, d.add)
	}()
	select {
	case <-started:
		return d, nil
	case err := <-d.done:
		stop()
		return nil, errors.Join(errors.New("following the denials"), err)
	}
}

func (d *denialLog) add(e gen.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Type == gen.EventLost {
		d.lost += e.Lost
	}
	flow, ok := probe.FlowOf(e)
	if !ok || e.Verdict != gen.VerdictDeny {
		return nil
	}
	if e.Direction == "egress" {
		d.by[flow] |= deniedEgress
	} else {
		d.by[flow] |= deniedIngress
	}
	return nil
}

// end stops following; events that were lost are an error.
func (d *denialLog) end() error {
	d.stop()
	err := <-d.done
	if d.lost > 0 {
		err = errors.Join(err, fmt.Errorf("%d events were lost", d.lost))
	}
	return err
}

// sendRows sends all exchanges at once, those of a source from its own namespace
// and from one port, and returns when each has its answer or its denial or has
// waited in vain. TCP and UDP want a word back, SCTP an INIT ACK.
func sendRows(d *denialLog, list []*exchange, sport uint16) error {
	d.mu.Lock()
	clear(d.by) // no later flow has the same port
	d.mu.Unlock()
	rows := map[string][]*exchange{}
	for _, e := range list {
		e.flow.Src = netip.AddrPortFrom(e.from.Addrs[0], sport)
		rows[e.from.Name] = append(rows[e.from.Name], e)
	}
	var g errgroup.Group
	for _, row := range rows {
		g.Go(func() error {
			return row[0].from.Netns.Do(func() error {
				r := &rowSockets{row: row, denials: d, byFD: map[int32]*exchange{}, byDst: map[lab.Flow]*exchange{}}
				defer r.close()
				if err := r.open(); err != nil {
					return fmt.Errorf("sockets of %s: %w", row[0].from.Name, err)
				}
				return r.wait()
			})
		})
	}
	err := g.Wait()
	time.Sleep(3 * 20 * time.Millisecond) // the agent looks at its ring every 20 ms
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range list {
		e.denied = d.by[e.flow]
	}
	return err
}

// rowSockets are the sockets of a source.
type rowSockets struct {
	row             []*exchange
	denials         *denialLog
	poll, udp, sctp int
	byFD            map[int32]*exchange    // of TCP
	byDst           map[lab.Flow]*exchange // of the others, by protocol and destination
}

func (r *rowSockets) close() {
	for fd := range r.byFD {
		unix.Close(int(fd))
	}
	for _, fd := range []int{r.poll, r.udp, r.sctp} {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}

// socket makes one that is bound and watched.
func (r *rowSockets) socket(kind, proto int, at netip.AddrPort, events uint32) (int, error) {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err == nil {
		err = unix.EpollCtl(r.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// open makes the sockets and sends what is first.
func (r *rowSockets) open() (err error) {
	if r.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	src := r.row[0].flow.Src
	if r.udp, err = r.socket(unix.SOCK_DGRAM, 0, src, unix.EPOLLIN); err != nil {
		return err
	}
	if r.sctp, err = r.socket(unix.SOCK_RAW, unix.IPPROTO_SCTP, netip.AddrPortFrom(src.Addr(), 0), unix.EPOLLIN); err != nil {
		return err
	}
	for _, e := range r.row {
		if e.flow.Proto != types.ProtoTCP {
			r.byDst[lab.Flow{Proto: e.flow.Proto, Dst: e.flow.Dst}] = e
			r.send(e)
			continue
		}
		fd, err := r.socket(unix.SOCK_STREAM, 0, src, unix.EPOLLOUT)
		if err != nil {
			return err
		}
		r.byFD[int32(fd)] = e
		// A reset at the end, so that nothing lingers.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(e.flow.Dst)); err != nil && err != unix.EINPROGRESS {
			return err
		}
	}
	return nil
}

// send sends a datagram or an INIT. A refused one stays without answer.
func (r *rowSockets) send(e *exchange) {
	if e.flow.Proto == types.ProtoUDP {
		unix.Sendto(r.udp, wordOf(e), 0, sockaddr(e.flow.Dst))
		return
	}
	packet := sctpPacket(e.flow.Src.Port(), e.flow.Dst.Port(), sctpINIT)
	unix.Sendto(r.sctp, packet, 0, sockaddr(netip.AddrPortFrom(e.flow.Dst.Addr(), 0)))
}

// Chunks of SCTP.
const sctpINIT, sctpINITACK = 1, 2

// sctpPacket is a packet with an INIT or an INIT ACK (RFC 9260, 3.3.2): ports, no
// verification tag, checksum; type, no flags, 20 bytes; tag, credit, streams each
// way, first TSN.
func sctpPacket(src, dst uint16, chunk byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, src)
	p = binary.BigEndian.AppendUint16(p, dst)
	p = append(p, 0, 0, 0, 0, 0, 0, 0, 0, chunk, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, castagnoli))
	return p
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// wordOf is what an exchange's receiver has to send back.
func wordOf(e *exchange) []byte { return fmt.Appendf(nil, "%v to %v", e.flow.Src, e.flow.Dst) }

// wait handles what comes until every exchange is decided.
func (r *rowSockets) wait() error {
	open := r.row
	end, again := time.Now().Add(patience), time.Now().Add(resend)
	events, buf := make([]unix.EpollEvent, 64), make([]byte, 2048)
	for len(open) > 0 && time.Now().Before(end) {
		n, err := unix.EpollWait(r.poll, events, look)
		if err != nil && err != unix.EINTR {
			return err
		}
		for _, ev := range events[:max(n, 0)] {
			switch int(ev.Fd) {
			case r.udp:
				r.receiveUDP(buf)
			case r.sctp:
				r.receiveSCTP(buf)
			default:
				r.advance(int(ev.Fd), buf)
			}
		}
		r.denials.mu.Lock()
		var left []*exchange
		for _, e := range open {
			if !e.passed && r.denials.by[e.flow] == 0 {
				left = append(left, e)
			}
		}
		r.denials.mu.Unlock()
		open = left
		if time.Now().After(again) {
			again = time.Now().Add(resend)
			for _, e := range open {
				if e.flow.Proto != types.ProtoTCP { // which does so itself
					r.send(e)
				}
			}
		}
	}
	return nil
}

// advance goes on with a connection: it says the word, then reads it.
func (r *rowSockets) advance(fd int, buf []byte) {
	e := r.byFD[int32(fd)]
	if e == nil {
		return
	}
	failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if n, readErr := unix.Read(fd, buf); err == nil && failed == 0 && readErr == nil && string(buf[:n]) == string(wordOf(e)) {
		e.passed = true
	} else if err == nil && failed == 0 && readErr == unix.EAGAIN { // connected
		_, err = unix.Write(fd, wordOf(e))
		if err == nil && unix.EpollCtl(r.poll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}) == nil {
			return
		}
	}
	unix.EpollCtl(r.poll, unix.EPOLL_CTL_DEL, fd, nil)
}

func (r *rowSockets) receiveUDP(buf []byte) {
	for {
		n, from, err := unix.Recvfrom(r.udp, buf, 0)
		if err != nil {
			return
		}
		if e := r.byDst[lab.Flow{Proto: types.ProtoUDP, Dst: addrPort(from)}]; e != nil && string(buf[:n]) == string(wordOf(e)) {
			e.passed = true
		}
	}
}

func (r *rowSockets) receiveSCTP(buf []byte) {
	for {
		n, from, err := unix.Recvfrom(r.sctp, buf, 0)
		if err != nil {
			return
		}
		src, p := addrPort(from), buf[:n]
		if src.Addr().Is4() && n > 0 {
			p = p[min(n, int(p[0]&15)*4):] // the IP header
		}
		if len(p) < 16 || p[12] != sctpINITACK || binary.BigEndian.Uint16(p[2:]) != r.row[0].flow.Src.Port() {
			continue
		}
		dst := netip.AddrPortFrom(src.Addr(), binary.BigEndian.Uint16(p))
		if e := r.byDst[lab.Flow{Proto: types.ProtoSCTP, Dst: dst}]; e != nil {
			e.passed = true
		}
	}
}
