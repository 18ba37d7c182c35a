package cmd

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/identity"
)

// A packet between two pods of a node is judged at both, which gives two events.
const (
	pairWait = 50 * time.Millisecond // for the other event of a packet
	pairTime = 2 * time.Millisecond  // between the two, at the most
	pairsMax = 4096                  // that are waited for; more are printed one by one
)

// packetKey is what the two events of a packet have in common.
type packetKey struct {
	proto, source, destination string
	sourcePort, destPort       uint16
	icmpType, icmpCode         uint8
}

type heldEvent struct{ gen.Event }

// eventLines prints events for people, those of one packet on one line.
type eventLines struct {
	print func(string) error

	mu   sync.Mutex
	held map[packetKey]*heldEvent // whose packet may give another event
	err  error                    // of printing what was held
}

// add prints an event, at once or with the other one of its packet.
func (l *eventLines) add(e gen.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	key := packetKey{e.Proto, e.Source.IP, e.Destination.IP, e.Source.Port, e.Destination.Port, e.IcmpType, e.IcmpCode}
	first := l.held[key]
	switch {
	case !judgedTwice(e):
		return l.print(eventLine(e))
	case first != nil && first.Direction != e.Direction && e.Time.Sub(first.Time).Abs() <= pairTime:
		delete(l.held, key)
		return l.print(packetLine(first.Event, e))
	case first == nil && len(l.held) >= pairsMax:
		return l.print(eventLine(e))
	}
	h := &heldEvent{e}
	l.held[key] = h
	time.AfterFunc(pairWait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.held[key] == h {
			delete(l.held, key)
			l.keep(l.print(eventLine(h.Event)))
		}
	})
	if first != nil { // an earlier packet of the flow
		return l.print(eventLine(first.Event))
	}
	return nil
}

// end prints what is held.
func (l *eventLines) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, h := range l.held {
		delete(l.held, key)
		l.keep(l.print(eventLine(h.Event)))
	}
	return l.err
}

func (l *eventLines) keep(err error) {
	if l.err == nil {
		l.err = err
	}
}

// judgedTwice reports whether another event of the packet may come: it is about a
// judgement between two pods.
func judgedTwice(e gen.Event) bool {
	switch e.Type {
	case gen.EventVerdict, gen.EventAudit:
	case gen.EventDrop:
		if e.Reason != drop.Policy.String() && e.Reason != drop.PolicyDeny.String() {
			return false
		}
	default:
		return false
	}
	return e.Source.Pod != "" && e.Destination.Pod != ""
}

// weight orders the events of a packet: what happened to it comes first.
func weight(e gen.Event) int {
	switch {
	case e.Type == gen.EventDrop:
		return 4
	case e.Type == gen.EventAudit:
		return 3
	case e.Verdict == gen.VerdictDeny:
		return 2
	case e.Direction == gen.DirectionEgress:
		return 1
	}
	return 0
}

// packetLine prints both events of a packet: what happened to it, and what the other
// direction said.
func packetLine(a, b gen.Event) string {
	if weight(b) > weight(a) {
		a, b = b, a
	}
	says := "allows"
	switch {
	case b.Type == gen.EventAudit:
		says = "denies, and is audited"
	case b.Verdict == gen.VerdictDeny:
		says = "denies"
	}
	line := fmt.Sprintf("%s; %s %s", eventLine(a), b.Direction, says)
	if b.Rule.Text != "" {
		line += ": " + b.Rule.Text
	}
	return line
}

// eventLine prints an event for people.
func eventLine(e gen.Event) string {
	at := e.Time.Local().Format("15:04:05.000000")
	if e.Type == gen.EventLost {
		return fmt.Sprintf("%s lost %d events, which came faster than they were read; ask for fewer, with --endpoint, --type or --verdict", at, e.Lost)
	}
	what := e.Proto
	if strings.HasPrefix(e.Proto, "ICMP") { // what stands for a port there is the identifier of an echo
		what += fmt.Sprintf(" type %d code %d", e.IcmpType, e.IcmpCode)
		e.Source.Port, e.Destination.Port = 0, 0
	}
	line := fmt.Sprintf("%s %-7s %s %s %s %s -> %s", at, e.Type, e.Verdict, e.Direction, what, eventPeer(e.Source), eventPeer(e.Destination))
	if e.Reason != "" {
		line += " " + e.Reason
	}
	if e.Rule.Text != "" {
		line += ": " + e.Rule.Text
	}
	if e.Rule.Log != "" {
		line += fmt.Sprintf(" log %q", e.Rule.Log)
	}
	return line
}

func eventPeer(p gen.EventPeer) string {
	addr := p.IP
	if p.Port != 0 {
		addr = net.JoinHostPort(p.IP, fmt.Sprint(p.Port))
	}
	return strings.TrimSpace(addr + " (" + peerName(p) + ")")
}

// peerName is a pod, the name of a reserved identity, a prefix, or an identity's number.
func peerName(p gen.EventPeer) string {
	if p.Pod != "" {
		return p.Pod
	}
	if id := identity.NumericIdentity(p.Identity); id.IsReserved() || id == identity.InvalidIdentity {
		return id.String()
	}
	for _, l := range p.Labels {
		if strings.HasPrefix(l, "cidr:") {
			return l
		}
	}
	return fmt.Sprintf("identity %d", p.Identity)
}
