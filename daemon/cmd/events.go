package cmd

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/monitor"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// eventQueue is how many events wait for one slow reader before it loses some.
const eventQueue = 16384

// events reads the ring once and gives every reader its own queue.
type events struct {
	broker  monitor.Broker
	source  *monitor.Source
	manager *endpointmanager.Manager
	labels  func(identity.NumericIdentity) labels.LabelArray
	rule    func(policytypes.RuleID) (policytypes.RuleRef, bool)
}

func newEvents(m *kernelMaps, logger *slog.Logger) *events {
	e := &events{}
	e.source = monitor.NewSource(m.Events, m.Metrics, e.broker.Publish, logger)
	return e
}

// Follow calls subscribed, then emit for every event until ctx ends or one of
// them fails (pkg/api eventSource).
func (e *events) Follow(ctx context.Context, subscribed func() error, emit func(gen.Event) error) error {
	sub := e.broker.Subscribe(eventQueue)
	defer sub.Close()
	if err := subscribed(); err != nil {
		return err
	}
	for {
		ev, err := sub.Next(ctx)
		if err != nil {
			return nil // ctx ended
		}
		if err := emit(e.model(ev)); err != nil {
			return err
		}
	}
}

// HasEndpoint reports whether an endpoint answers to a reference.
func (e *events) HasEndpoint(ref id.Ref) bool {
	_, err := e.manager.Lookup(ref)
	return !errors.Is(err, endpointmanager.ErrNotFound) // one of several is one too
}

// model adds the names that the data plane does not know.
func (e *events) model(ev monitor.Event) gen.Event {
	if ev.Type == monitor.Lost {
		return gen.Event{Time: ev.Time, Type: gen.EventLost, Lost: ev.Lost}
	}
	out := gen.Event{
		Time: ev.Time, Type: gen.EventType(ev.Type.String()), Verdict: gen.Verdict(ev.Verdict.String()), Direction: gen.Direction(ev.Direction.String()),
		Endpoint: ev.Endpoint, Proto: ev.Protocol.String(), IcmpType: ev.ICMPType, IcmpCode: ev.ICMPCode, TCPFlags: monitor.FlagNames(ev.TCPFlags),
		Length: ev.Length, Source: e.peer(ev.Source), Destination: e.peer(ev.Destination),
	}
	if ev.Verdict == policytypes.Deny {
		out.Reason = ev.Reason.String()
	}
	if ref, ok := e.rule(ev.Rule); ok {
		out.Rule = api.RuleModel(ev.Rule, ref)
	}
	return out
}

func (e *events) peer(p monitor.Peer) gen.EventPeer {
	out := gen.EventPeer{Port: p.Port, Identity: uint32(p.Identity), PrefixIdentity: uint32(p.PrefixIdentity), Labels: e.labels(p.Identity).Strings()}
	if p.Addr.IsValid() {
		out.IP, out.Pod = p.Addr.String(), e.podAt(p.Addr)
	}
	return out
}

func (e *events) podAt(a netip.Addr) string {
	if ep := e.manager.ByAddr(a); ep != nil {
		return ep.Row().Pod.String()
	}
	return ""
}
