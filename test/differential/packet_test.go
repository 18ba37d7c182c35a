package differential

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/weirnet/weir/cli/trial"
	wtypes "github.com/weirnet/weir/pkg/types"
)

const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// conn is a connection that packets of a test belong to.
type conn struct {
	src, dst     *end
	proto        wtypes.Proto
	sport, dport uint16 // of ICMP: identifier and type; 0 of protocols without ports
}

func (c conn) String() string {
	return fmt.Sprintf("%s (%s) to %s (%s) %s %d to %d", c.src.name, c.src.addr, c.dst.name, c.dst.addr, c.proto, c.sport, c.dport)
}

func (c conn) v4() bool { return c.src.addr.Is4() }

func (c conn) icmp() bool {
	return c.v4() && c.proto == wtypes.ProtoICMP || !c.v4() && c.proto == wtypes.ProtoICMPv6
}

func (c conn) echo() (request, reply uint16) {
	if c.v4() {
		return echoRequest4, echoReply4
	}
	return echoRequest6, echoReply6
}

// flowKey is a flow as conntrack shows it.
type flowKey struct {
	initiator, responder netip.AddrPort
	proto                wtypes.Proto
}

// key is what conntrack has to show: an echo has its identifier at the
// requester, other ICMP messages have their type at both ends.
func (c conn) key() flowKey {
	sport, dport := c.sport, c.dport
	if c.icmp() {
		request, reply := c.echo()
		switch c.dport {
		case request:
			dport = 0
		case reply:
			sport, dport = 0, c.sport
		default:
			sport = c.dport
		}
	}
	return flowKey{netip.AddrPortFrom(c.src.addr, sport), netip.AddrPortFrom(c.dst.addr, dport), c.proto}
}

// undirected is the same for both directions of a flow.
func (k flowKey) undirected() flowKey {
	if cmp.Or(k.initiator.Addr().Compare(k.responder.Addr()), cmp.Compare(k.initiator.Port(), k.responder.Port())) > 0 {
		k.initiator, k.responder = k.responder, k.initiator
	}
	return k
}

// answerable reports whether a packet of the responder, and a later one of the
// initiator, belong to the flow that a first packet opened.
func (c conn) answerable() (reply, forward bool) {
	if !c.icmp() {
		return true, true
	}
	request, unasked := c.echo()
	return c.dport == request, c.dport != unasked
}

// frame makes a packet of the connection, from the initiator or the responder.
func (c conn) frame(reply bool, flags byte, srcMAC wtypes.MAC) []byte {
	src, dst := netip.AddrPortFrom(c.src.addr, c.sport), netip.AddrPortFrom(c.dst.addr, c.dport)
	switch {
	case reply && c.icmp():
		_, answer := c.echo()
		src, dst = netip.AddrPortFrom(c.dst.addr, c.sport), netip.AddrPortFrom(c.src.addr, answer)
	case reply:
		src, dst = dst, src
	}
	return trial.Packet{SrcMAC: srcMAC, Src: src, Dst: dst, Proto: c.proto, Flags: flags}.Frame()
}
