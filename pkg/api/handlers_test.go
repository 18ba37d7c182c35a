package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wiretypes "github.com/weirnet/weir/pkg/types"
)

type fakePolicies struct{ policies []*types.Policy }

func (f fakePolicies) Policies() (uint64, []*types.Policy)     { return 9, f.policies }
func (f fakePolicies) Realized() uint64                        { return 8 }
func (f fakePolicies) Rule(types.RuleID) (types.RuleRef, bool) { return types.RuleRef{}, false }

type fakeEditor struct{ applied int }

func (f *fakeEditor) Apply(_ context.Context, _ string, doc []byte) (PolicyChange, error) {
	f.applied += len(doc)
	return PolicyChange{Revision: 10}, nil
}
func (f *fakeEditor) Delete(_ context.Context, kind, ns, name string) (PolicyChange, error) {
	return PolicyChange{Revision: 11, Resources: []types.Resource{{Kind: kind, Namespace: ns, Name: name}}}, nil
}
func (f *fakeEditor) Validate(context.Context, string, []byte) Validation { return Validation{} }

type fakeIPAM struct {
	allocate func(context.Context, LeaseRequest) (gen.Lease, error)
}

func (f *fakeIPAM) Allocate(ctx context.Context, r LeaseRequest) (gen.Lease, error) {
	return f.allocate(ctx, r)
}
func (f *fakeIPAM) Release(context.Context, netip.Addr, string) error { return nil }
func (f *fakeIPAM) Leases(context.Context) gen.IPAMStatus             { return gen.IPAMStatus{} }

// fakeEvents emits what it holds, then waits. Before it says that it has
// subscribed its caller, it calls subscribing if that is set.
type fakeEvents struct {
	events      []gen.Event
	subscribing func()
}

// HasEndpoint: there is one endpoint, 7.
func (f *fakeEvents) HasEndpoint(ref id.Ref) bool { return ref.ID == 7 || ref.Kind != id.KindLocal }

func (f *fakeEvents) Follow(ctx context.Context, subscribed func() error, emit func(gen.Event) error) error {
	if f.subscribing != nil {
		f.subscribing()
	}
	if err := subscribed(); err != nil {
		return err
	}
	for _, e := range f.events {
		if err := emit(e); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

func TestSideNamesAPodAnEndpointOrAnAddress(t *testing.T) {
	for text, want := range map[string]Side{
		"shop/web":        {Namespace: "shop", Name: "web"},
		"42":              {Endpoint: 42},
		"10.0.0.7":        {Addr: netip.MustParseAddr("10.0.0.7")},
		"fd00::7":         {Addr: netip.MustParseAddr("fd00::7")},
		"::ffff:10.0.0.7": {Addr: netip.MustParseAddr("10.0.0.7")},
	} {
		have, err := side("from", text)
		require.NoError(t, err, text)
		require.Equal(t, want, have, text)
	}
	for _, text := range []string{"", "web", "a/b/c", "/b", "a/", "0", "70000", "10.0.0", "fe80::1%eth0"} {
		_, err := side("from", text)
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err), text)
		require.ErrorContains(t, err, "from", text)
	}
}

func TestQuestionReadsPortAndProtocol(t *testing.T) {
	ask := func(port, proto string) (Question, error) {
		return question(gen.GetWhyParams{From: "a/b", To: "10.0.0.1", Port: &port, Proto: &proto})
	}
	q, err := ask("8080", "")
	require.NoError(t, err)
	require.Equal(t, "TCP", q.Proto)
	require.Equal(t, uint16(8080), q.Port)
	q, err = ask("http", "udp")
	require.NoError(t, err)
	require.Equal(t, "http", q.PortName)
	require.Equal(t, "UDP", q.Proto)
	q, err = ask("", "icmp")
	require.NoError(t, err)
	require.Zero(t, q.Port)
	require.Empty(t, q.PortName)
	for _, kind := range []string{"0", "8", "EchoReply"} {
		q, err = ask(kind, "icmp")
		require.NoError(t, err)
		require.Equal(t, kind, q.PortName, "a type of ICMP, of which 0 is one")
	}
	for _, c := range [][2]string{{"", "tcp"}, {"0", "tcp"}, {"65536", "tcp"}, {"80", "quic"}, {"99999999999999999999", ""}} {
		_, err := ask(c[0], c[1])
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err), "%v", c)
	}
}

func TestPolicyModelKeepsNobodyApartFromAnybody(t *testing.T) {
	sel := labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: "app", Operator: labels.In, Values: []string{"web"}})
	p := &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "shop", Name: "p", File: "p.yaml", Line: 3}, Subject: sel, IsolatesIngress: true,
		Rules: []types.Rule{
			{Ref: types.RuleRef{Section: types.SectionIngress, Index: 1, Line: 12}, Direction: types.Ingress, Verdict: types.Allow, Peers: []types.Peer{}, Ports: nil},
			{Direction: types.Egress, Peers: nil, Ports: []types.Port{{Proto: wiretypes.ProtoTCP, Port: 80, End: 90}, {Proto: wiretypes.ProtoUDP, Name: "dns"}, {Proto: wiretypes.ProtoSCTP}}},
			{Peers: []types.Peer{{CIDR: &types.CIDRPeer{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Pods: true}}, {Entity: types.EntityAll}, {Labels: &sel}}},
		}}
	m := policyModel(p)
	require.Equal(t, gen.PolicyRef{Kind: "NetworkPolicy", Namespace: "shop", Name: "p", File: "p.yaml", Line: 3}, m.Ref)
	require.NotNil(t, m.Rules[0].Peers)
	require.Empty(t, *m.Rules[0].Peers)
	require.Nil(t, m.Rules[0].Ports)
	require.Equal(t, gen.VerdictAllow, m.Rules[0].Verdict)
	require.Nil(t, m.Rules[1].Peers)
	require.Equal(t, []string{"80-90/TCP", "dns/UDP", "*/SCTP"}, *m.Rules[1].Ports)
	require.Equal(t, gen.VerdictDeny, m.Rules[1].Verdict)
	require.Equal(t, []string{"10.0.0.0/8 except 10.1.0.0/16 (pods too)", "entity all", sel.String()}, *m.Rules[2].Peers)
}

func TestRuleModelNamesEveryKind(t *testing.T) {
	for k := types.KindPolicy; k <= types.KindInit; k++ {
		m := RuleModel(5, types.RuleRef{Kind: k, Index: 0})
		require.NotEqual(t, gen.RuleUnknown, m.Kind, "kind %d", k)
		require.Equal(t, uint32(5), m.ID)
		require.Equal(t, k == types.KindPolicy, m.Index != nil)
	}
	deny := RuleModel(0, types.RuleRef{Kind: types.KindDefaultDeny, Isolated: []types.Resource{{Kind: "NetworkPolicy", Namespace: "a", Name: "b"}}})
	require.Len(t, deny.Isolating, 1)
	require.Contains(t, deny.Text, "a/b")
	require.Equal(t, gen.RuleUnknown, RuleModel(1, types.RuleRef{Kind: 200}).Kind)
}

func TestEventFilterConditionsAreANDed(t *testing.T) {
	drop := gen.Event{Type: gen.EventDrop, Verdict: gen.VerdictDeny, Direction: gen.DirectionIngress, Endpoint: 7, Proto: "TCP",
		Source:      gen.EventPeer{IP: "10.0.0.1", Port: 4000, Identity: 1001, Pod: "shop/web"},
		Destination: gen.EventPeer{IP: "fd00::9", Port: 80, Identity: 1002, Pod: "shop/db"}}
	lost := gen.Event{Type: gen.EventLost, Lost: 3}
	p := func(change func(*gen.GetMonitorParams)) gen.GetMonitorParams {
		var out gen.GetMonitorParams
		change(&out)
		return out
	}
	for name, c := range map[string]struct {
		params gen.GetMonitorParams
		want   bool
	}{
		"no condition":             {p(func(*gen.GetMonitorParams) {}), true},
		"its type":                 {p(func(p *gen.GetMonitorParams) { p.Type = []gen.EventType{gen.EventDrop} }), true},
		"another type":             {p(func(p *gen.GetMonitorParams) { p.Type = []gen.EventType{gen.EventAudit} }), false},
		"its port and protocol":    {p(func(p *gen.GetMonitorParams) { p.Port, p.Proto = ptr(uint16(80)), ptr("tcp") }), true},
		"its port, other protocol": {p(func(p *gen.GetMonitorParams) { p.Port, p.Proto = ptr(uint16(80)), ptr("udp") }), false},
		"identity of either side":  {p(func(p *gen.GetMonitorParams) { p.Identity = ptr(uint32(1001)) }), true},
		"identity 0 is a number":   {p(func(p *gen.GetMonitorParams) { p.Identity = ptr(uint32(0)) }), false},
		"prefix of either side":    {p(func(p *gen.GetMonitorParams) { p.IP = ptr("fd00::/8") }), true},
		"another address":          {p(func(p *gen.GetMonitorParams) { p.IP = ptr("10.0.0.2") }), false},
		"endpoint by number":       {p(func(p *gen.GetMonitorParams) { p.Endpoint = ptr("7") }), true},
		"another endpoint":         {p(func(p *gen.GetMonitorParams) { p.Endpoint = ptr("8") }), false},
		"endpoint by pod":          {p(func(p *gen.GetMonitorParams) { p.Endpoint = ptr("pod-name:shop/db") }), true},
		"endpoint by address":      {p(func(p *gen.GetMonitorParams) { p.Endpoint = ptr("ipv4:10.0.0.1") }), true},
		"another verdict":          {p(func(p *gen.GetMonitorParams) { p.Verdict = ptr(gen.VerdictAllow) }), false},
		"another direction":        {p(func(p *gen.GetMonitorParams) { p.Direction = ptr(gen.DirectionEgress) }), false},
	} {
		f, err := newEventFilter(c.params)
		require.NoError(t, err, name)
		require.Equal(t, c.want, f.match(drop), name)
		require.Equal(t, len(c.params.Type) == 0, f.match(lost), name)
	}
	for name, bad := range map[string]gen.GetMonitorParams{
		"type": p(func(p *gen.GetMonitorParams) { p.Type = []gen.EventType{"noise"} }), "verdict": p(func(p *gen.GetMonitorParams) { p.Verdict = ptr(gen.Verdict("maybe")) }),
		"direction": p(func(p *gen.GetMonitorParams) { p.Direction = ptr(gen.Direction("up")) }), "ip": p(func(p *gen.GetMonitorParams) { p.IP = ptr("10.0.0") }),
		"endpoint": p(func(p *gen.GetMonitorParams) { p.Endpoint = ptr("container-id:abc") }), "protocol": p(func(p *gen.GetMonitorParams) { p.Proto = ptr("quic") }),
	} {
		_, err := newEventFilter(bad)
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err), name)
		require.ErrorContains(t, err, name)
	}
}

func TestRequestedAddressesAreChecked(t *testing.T) {
	var got LeaseRequest
	s := startServer(t, Sources{IPAM: &fakeIPAM{allocate: func(_ context.Context, r LeaseRequest) (gen.Lease, error) {
		got = r
		return gen.Lease{ID: "l", Owner: r.Owner, Pool: "default"}, nil
	}}}, nil)
	resp, _ := s.ask("POST", "/v1/ipam", strings.NewReader(`{"owner":"c:eth0","requested":["10.0.0.7","fd00::7"],"ipv6":false,"pod":{"namespace":"a","name":"b"}}`))
	require.Equal(t, http.StatusCreated, resp.StatusCode)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}, got.Requested)
	require.Nil(t, got.IPv4)
	require.False(t, *got.IPv6)
	require.Equal(t, "a", got.Pod.Namespace)
	for body, want := range map[string]string{
		`{"owner":"c","requested":["10.0.0.7","10.0.0.8"]}`: "second address of its family",
		`{"owner":"c","requested":["ten"]}`:                 "requested",
		`{"owner":""}`:                                      "owner",
	} {
		_, e := s.ask("POST", "/v1/ipam", strings.NewReader(body))
		require.Equal(t, string(v1.CodeInvalid), e.Code, body)
		require.Contains(t, e.Text, want)
	}
}

func ptr[T any](v T) *T { return &v }

// A client that has the header must not miss an event of what it does next.
func TestMonitorSendsItsHeaderOnceItIsSubscribed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	early := false
	source := &fakeEvents{subscribing: func() { early = w.Flushed }}
	if err := (stream{ctx: ctx, source: source}).VisitGetMonitorResponse(w); err != nil {
		t.Fatal(err)
	}
	if early || !w.Flushed {
		t.Errorf("header sent before the subscription: %v; sent at all: %v", early, w.Flushed)
	}
}

func TestN62AMonitorOfAnEndpointThatIsNotThereIsRefused(t *testing.T) {
	s := startServer(t, Sources{Events: &fakeEvents{}}, nil)
	resp, e := s.ask("GET", "/v1/monitor?endpoint=8", nil)
	require.Equal(t, 404, resp.StatusCode)
	require.Contains(t, e.Text, "no endpoint answers to 8")
	require.Contains(t, e.Next, "weir endpoint list")
}

type fakeKeeper struct{}

func (fakeKeeper) Sources(context.Context) []gen.Source {
	return []gen.Source{{Path: "/etc/objects", State: gen.SourceHeld, Files: []gen.SourceFile{}}}
}
func (fakeKeeper) Accept(_ context.Context, folder string) (gen.Source, error) {
	return gen.Source{Path: folder, State: gen.SourceGood}, nil
}

func TestN01SourcesAreListedAndAccepted(t *testing.T) {
	h := NewHandlers(Sources{Keeper: fakeKeeper{}}, "x")
	list, err := h.ListSources(t.Context(), gen.ListSourcesRequestObject{})
	require.NoError(t, err)
	require.Equal(t, gen.SourceHeld, list.(gen.ListSources200JSONResponse).Sources[0].State)
	_, err = h.AcceptSource(t.Context(), gen.AcceptSourceRequestObject{})
	require.Equal(t, v1.CodeInvalid, v1.CodeOf(err))
	one, err := h.AcceptSource(t.Context(), gen.AcceptSourceRequestObject{Params: gen.AcceptSourceParams{Path: "/etc/objects"}})
	require.NoError(t, err)
	require.Equal(t, gen.SourceGood, one.(gen.AcceptSource200JSONResponse).State)
	_, err = NewHandlers(Sources{}, "x").ListSources(t.Context(), gen.ListSourcesRequestObject{})
	require.Equal(t, v1.CodeNotReady, v1.CodeOf(err))
}
