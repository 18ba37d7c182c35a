package node

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/lab"
)

// hammer sends a datagram every millisecond from inside a namespace, from before
// there is a network, until stop is called. It returns how many left the socket.
func hammer(t *testing.T, ns lab.Netns, dst netip.AddrPort) (stop func() (sent int)) {
	t.Helper()
	done := make(chan struct{})
	var sent atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		err := ns.Do(func() error {
			family := unix.AF_INET
			var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(dst.Port()), Addr: dst.Addr().Unmap().As4()}
			fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return nil
				case <-tick.C:
					if unix.Sendto(fd, []byte("x"), unix.MSG_DONTWAIT, to) == nil {
						sent.Add(1)
					}
				}
			}
		})
		if err != nil {
			t.Errorf("hammering from %s: %v", ns, err)
		}
	})
	return func() int {
		close(done)
		wg.Wait()
		return int(sent.Load())
	}
}

// sink counts the datagrams that reach a port inside a namespace.
type sink struct {
	conn  *net.UDPConn
	count atomic.Int64
}

func newSink(t *testing.T, ns lab.Netns, port uint16) *sink {
	t.Helper()
	s := &sink{}
	err := ns.Do(func() (err error) {
		s.conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("listening in %s: %w", ns, err))
	}
	go func() {
		buf := make([]byte, 64)
		for {
			if _, _, err := s.conn.ReadFromUDPAddrPort(buf); err != nil {
				return
			}
			s.count.Add(1)
		}
	}()
	return s
}

func (s *sink) close() int {
	s.conn.Close()
	return int(s.count.Load())
}

// settle gives what is on its way a moment.
func (s *sink) settle() { time.Sleep(20 * time.Millisecond) }
