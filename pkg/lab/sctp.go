package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/weirnet/weir/pkg/types"
)

// This kernel family may have no SCTP sockets; an association's first exchange
// (INIT, INIT ACK; RFC 9260 section 5.1) is sent and answered on raw sockets.

// serveSCTP answers an INIT to a declared port by an INIT ACK.
func serveSCTP(ctx context.Context, wg *sync.WaitGroup, ns Netns, ports []Port) error {
	for _, network := range []string{"ip4:132", "ip6:132"} {
		conn, err := listenIP(ns, network)
		if err != nil {
			return fmt.Errorf("raw SCTP socket: %w", err)
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		wg.Go(func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := conn.ReadFromIP(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					continue
				}
				h, chunk := parseSCTP(buf[:n])
				if h == nil || chunk != layers.SCTPChunkTypeInit || !slices.Contains(ports, Port{types.ProtoSCTP, uint16(h.DstPort)}) {
					continue
				}
				answer, err := buildSCTP(uint16(h.DstPort), uint16(h.SrcPort), layers.SCTPChunkTypeInitAck)
				if err == nil {
					conn.WriteToIP(answer, from)
				}
			}
		})
	}
	return nil
}

// probeSCTP sends an INIT from a raw socket in the calling thread's namespace
// and waits for the INIT ACK.
func probeSCTP(ctx context.Context, to netip.AddrPort, from uint16, timeout time.Duration) error {
	network := "ip4:132"
	if to.Addr().Is6() {
		network = "ip6:132"
	}
	conn, err := net.ListenIP(network, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	packet, err := buildSCTP(from, to.Port(), layers.SCTPChunkTypeInit)
	if err != nil {
		return err
	}
	if _, err := conn.WriteToIP(packet, &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return err
	}
	conn.SetReadDeadline(time.Now().Add(timeout))
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Now()) })()
	buf := make([]byte, 2048)
	for {
		n, _, err := conn.ReadFromIP(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err != nil {
			return err
		}
		h, chunk := parseSCTP(buf[:n])
		if h != nil && chunk == layers.SCTPChunkTypeInitAck && uint16(h.SrcPort) == to.Port() && uint16(h.DstPort) == from {
			return nil
		}
	}
}

func listenIP(ns Netns, network string) (conn *net.IPConn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = net.ListenIP(network, nil)
		return err
	})
	return conn, err
}

// buildSCTP makes a packet with one INIT or INIT ACK chunk.
func buildSCTP(src, dst uint16, chunk layers.SCTPChunkType) ([]byte, error) {
	header := &layers.SCTP{SrcPort: layers.SCTPPort(src), DstPort: layers.SCTPPort(dst)}
	init := &layers.SCTPInit{
		SCTPChunk:   layers.SCTPChunk{Type: chunk, Length: 20, ActualLength: 20},
		InitiateTag: 1, AdvertisedReceiverWindowCredit: 65536, OutboundStreams: 1, InboundStreams: 1, InitialTSN: 1,
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{ComputeChecksums: true}, header, init); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// parseSCTP returns the common header and the type of the first chunk.
func parseSCTP(b []byte) (*layers.SCTP, layers.SCTPChunkType) {
	h := &layers.SCTP{}
	if err := h.DecodeFromBytes(b, gopacket.NilDecodeFeedback); err != nil || len(h.Payload) < 4 {
		return nil, 0
	}
	if binary.BigEndian.Uint16(h.Payload[2:]) < 4 {
		return nil, 0
	}
	return h, layers.SCTPChunkType(h.Payload[0])
}
