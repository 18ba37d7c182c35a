package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/types"
)

// Serve opens every declared port of the lab's pods and hosts, and the same
// ports on the node, writes server.ready and answers until ctx ends: TCP and
// UDP echo, SCTP by an INIT ACK to each INIT.
func (l *Lab) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range l.Record.Pods {
		if err := ServePorts(ctx, &wg, p.Netns, p.Ports); err != nil {
			return fmt.Errorf("serving pod %s: %w", p.Key(), err)
		}
	}
	for _, h := range l.Record.Hosts {
		if err := ServePorts(ctx, &wg, h.Netns, h.Ports); err != nil {
			return fmt.Errorf("serving host %s: %w", h.Name, err)
		}
	}
	ready := filepath.Join(l.dir, "server.ready")
	if err := os.WriteFile(ready, nil, 0o644); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// ServePorts opens the ports inside a namespace on all its addresses; the
// answering goroutines end with ctx.
func ServePorts(ctx context.Context, wg *sync.WaitGroup, ns Netns, ports []Port) error {
	sctp := false
	for _, p := range ports {
		var c io.Closer
		var err error
		switch p.Proto {
		case types.ProtoTCP:
			c, err = serveTCP(ctx, wg, ns, p.Port)
		case types.ProtoUDP:
			c, err = serveUDP(ctx, wg, ns, p.Port)
		case types.ProtoSCTP:
			sctp = true
			continue
		default:
			return fmt.Errorf("port %s: the lab serves TCP, UDP and SCTP", p)
		}
		if err != nil {
			return fmt.Errorf("port %s: %w", p, err)
		}
		context.AfterFunc(ctx, func() { c.Close() })
	}
	if sctp {
		return serveSCTP(ctx, wg, ns, ports)
	}
	return nil
}

func serveTCP(ctx context.Context, wg *sync.WaitGroup, ns Netns, port uint16) (io.Closer, error) {
	var ln net.Listener
	err := ns.Do(func() (err error) {
		ln, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return nil, err
	}
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { echo(ctx, conn) })
		}
	})
	return ln, nil
}

// echo sends back what comes, for as long as the peer keeps the connection.
func echo(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	buf := make([]byte, 4096)
	for {
		conn.SetDeadline(time.Now().Add(10 * time.Minute))
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

func serveUDP(_ context.Context, wg *sync.WaitGroup, ns Netns, port uint16) (io.Closer, error) {
	var conns []*net.UDPConn
	// One socket per family: an answer from a dual-stack socket would have to
	// choose its source address itself.
	err := ns.Do(func() error {
		for _, network := range []string{"udp4", "udp6"} {
			c, err := net.ListenUDP(network, &net.UDPAddr{Port: int(port)})
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, c := range conns {
		wg.Go(func() {
			buf := make([]byte, 65536)
			for {
				n, from, err := c.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				c.WriteToUDPAddrPort(buf[:n], from) // a lost answer is a lost datagram
			}
		})
	}
	return closers{conns[0], conns[1]}, nil
}

type closers []io.Closer

func (c closers) Close() error {
	for _, one := range c {
		one.Close()
	}
	return nil
}
