package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	wiretypes "github.com/weirnet/weir/pkg/types"
)

// GetMonitor streams events as lines of JSON, each flushed at once.
func (h *Handlers) GetMonitor(ctx context.Context, r gen.GetMonitorRequestObject) (gen.GetMonitorResponseObject, error) {
	if h.src.Events == nil {
		return nil, notReady("events")
	}
	f, err := newEventFilter(r.Params)
	if err != nil {
		return nil, err
	}
	if f.endpoint.Kind != "" && !h.src.Events.HasEndpoint(f.endpoint) {
		return nil, v1.Errorf(v1.CodeNotFound, "weir endpoint list shows those of this node", "no endpoint answers to %s, so that no event can come", f.endpoint)
	}
	return stream{ctx: ctx, source: h.src.Events, filter: f}, nil
}

// stream is the answer of GET /monitor: it writes until a side closes.
type stream struct {
	ctx    context.Context
	source eventSource
	filter eventFilter
}

// VisitGetMonitorResponse is the generated server's hook. The header goes out
// once the source has subscribed this reader: a client that has it misses nothing
// of what it does next.
func (s stream) VisitGetMonitorResponse(w http.ResponseWriter) error {
	conn := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	subscribed := func() error {
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.WriteHeader(http.StatusOK)
		return conn.Flush()
	}
	// The status is sent, or the client has left: a failure can only end the stream.
	_ = s.source.Follow(s.ctx, subscribed, func(e gen.Event) error {
		if !s.filter.match(e) {
			return nil
		}
		if err := enc.Encode(e); err != nil {
			return err
		}
		return conn.Flush()
	})
	return nil
}

// eventFilter holds the conditions of a request; all must hold.
type eventFilter struct {
	types     []gen.EventType
	verdict   gen.Verdict
	direction gen.Direction
	endpoint  id.Ref // Kind "" for any
	identity  *uint32
	prefix    netip.Prefix // invalid for any
	port      uint16
	proto     string
}

func newEventFilter(p gen.GetMonitorParams) (eventFilter, error) {
	f := eventFilter{types: p.Type, verdict: value(p.Verdict), direction: value(p.Direction), identity: p.Identity, port: value(p.Port)}
	for _, t := range p.Type {
		if !t.Valid() {
			return f, v1.Errorf(v1.CodeInvalid, "use drop, verdict, audit or lost", "type: %q is not known", t)
		}
	}
	if f.verdict != "" && !f.verdict.Valid() {
		return f, v1.Errorf(v1.CodeInvalid, "use allow or deny", "verdict: %q is not known", f.verdict)
	}
	if f.direction != "" && !f.direction.Valid() {
		return f, v1.Errorf(v1.CodeInvalid, "use ingress or egress", "direction: %q is not known", f.direction)
	}
	var err error
	if text := value(p.Endpoint); text != "" {
		if f.endpoint, err = id.Parse(text); err != nil {
			return f, v1.NewError(v1.CodeInvalid, err, "")
		}
		if f.endpoint.Kind == id.KindContainer || f.endpoint.Kind == id.KindCNIAttachment {
			return f, v1.Errorf(v1.CodeInvalid, "use the endpoint's id, its pod-name: or its address", "endpoint: events do not carry %s", f.endpoint.Kind)
		}
	}
	if text := value(p.IP); text != "" {
		if f.prefix, err = netip.ParsePrefix(text); err != nil {
			a, err := parseAddr("ip", text)
			if err != nil {
				return f, err
			}
			f.prefix = netip.PrefixFrom(a, a.BitLen())
		}
	}
	if text := value(p.Proto); text != "" {
		proto, err := wiretypes.ParseProto(text)
		if err != nil {
			return f, v1.NewError(v1.CodeInvalid, err, "")
		}
		f.proto = proto.String()
	}
	return f, nil
}

// match reports whether the event is wanted. A lost record is, whatever the filter, unless types leave it out.
func (f eventFilter) match(e gen.Event) bool {
	if e.Type == gen.EventLost {
		return len(f.types) == 0 || slices.Contains(f.types, e.Type)
	}
	either := func(ok func(gen.EventPeer) bool) bool { return ok(e.Source) || ok(e.Destination) }
	switch {
	case len(f.types) > 0 && !slices.Contains(f.types, e.Type):
	case f.verdict != "" && e.Verdict != f.verdict:
	case f.direction != "" && e.Direction != f.direction:
	case f.proto != "" && !strings.EqualFold(e.Proto, f.proto):
	case f.port != 0 && !either(func(p gen.EventPeer) bool { return p.Port == f.port }):
	case f.identity != nil && !either(func(p gen.EventPeer) bool { return p.Identity == *f.identity }):
	case f.prefix.IsValid() && !either(func(p gen.EventPeer) bool { return holds(f.prefix, p.IP) }):
	case f.endpoint.Kind == id.KindLocal && e.Endpoint != f.endpoint.ID:
	case f.endpoint.Kind == id.KindPod && !either(func(p gen.EventPeer) bool { return p.Pod == f.endpoint.Text }):
	case f.endpoint.Addr.IsValid() && !either(func(p gen.EventPeer) bool { return p.IP == f.endpoint.Addr.String() }):
	default:
		return true
	}
	return false
}

func holds(p netip.Prefix, text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && p.Contains(a)
}
