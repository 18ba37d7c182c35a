package client

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/types"
	wiretypes "github.com/weirnet/weir/pkg/types"
)

// fake is every source of the agent's handlers with one of everything.
type fake struct{ made bool }

type endpointHandlers = endpointapi.Handlers

type joined struct {
	*api.Handlers
	*endpointHandlers
}

func newHandlers() gen.StrictServerInterface {
	f := &fake{}
	src := api.Sources{Status: f, Identities: f, Policies: f, Editor: fakeEditor{}, Keeper: fakeKeeper{}, IPs: f, IPAM: fakeIPAM{}, Explainer: f, Events: f}
	return joined{api.NewHandlers(src, "9.9"), endpointapi.NewHandlers(f, f, f)}
}

var (
	webLabels = labels.NewLabelArray(labels.New(labels.SourceK8s, "app", "web"))
	allow     = types.Resource{Kind: "NetworkPolicy", Namespace: "shop", Name: "allow", File: "p.yaml", Line: 2}
	ruleRef   = types.RuleRef{Resource: allow, Section: types.SectionEgress, Index: 0, Line: 9}
	now       = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
)

func (f *fake) Status(context.Context) gen.Status {
	return gen.Status{Verdict: gen.StateWarning, Ready: true, Summary: "one thing is wrong", Started: now,
		Components: []gen.Component{{Name: "source", State: gen.StateWarning, Message: "bad file", Next: "mend it", Since: now}}}
}
func (f *fake) Config(context.Context) gen.Config {
	return gen.Config{ClusterName: "default", NodeName: "n", Mtu: 1450, Ipv4: true, PolicyMode: gen.ModeDefault}
}
func (f *fake) Maps(context.Context) ([]gen.MapInfo, error) {
	return []gen.MapInfo{{Name: "b", Type: "Hash", Bytes: 100, MaxEntries: 1}, {Name: "a", Type: "Hash", Bytes: 200, MaxEntries: 1}}, nil
}
func (f *fake) Identities() []*identity.Identity {
	id, _ := f.Identity(1001)
	return []*identity.Identity{id, identity.New(identity.NumericIdentity(1), labels.NewLabelArray(labels.Reserved("host")))}
}
func (f *fake) Identity(n identity.NumericIdentity) (*identity.Identity, bool) {
	id := identity.New(n, webLabels)
	id.ReferenceCount = 2
	return id, n == 1001
}
func (f *fake) Policies() (uint64, []*types.Policy) {
	all := types.Resource{Kind: "CiliumClusterwideNetworkPolicy", Name: "all"}
	return 4, []*types.Policy{{Resource: allow, IsolatesEgress: true, Rules: []types.Rule{{Ref: ruleRef, Direction: types.Egress, Verdict: types.Allow, Peers: []types.Peer{}}}}, {Resource: all}}
}
func (f *fake) Realized() uint64                           { return 3 }
func (f *fake) Rule(id types.RuleID) (types.RuleRef, bool) { return ruleRef, id == 12 }

type fakeEditor struct{}

func (fakeEditor) Apply(_ context.Context, file string, _ []byte) (api.PolicyChange, error) {
	return api.PolicyChange{Revision: 5, Resources: []types.Resource{{Kind: "NetworkPolicy", Name: "new", File: file}}}, nil
}
func (fakeEditor) Delete(context.Context, string, string, string) (api.PolicyChange, error) {
	return api.PolicyChange{Revision: 6}, nil
}
func (fakeEditor) Validate(context.Context, string, []byte) api.Validation {
	return api.Validation{Problems: []api.Problem{{Line: 1, Field: "kind", Text: "not known"}}}
}

func (f *fake) IPs() []api.IPEntry {
	e, _ := f.LookupIP(netip.MustParseAddr("10.0.0.7"))
	return []api.IPEntry{{Prefix: netip.MustParsePrefix("::/0"), Identity: 10, Source: "generated"}, e}
}
func (f *fake) LookupIP(a netip.Addr) (api.IPEntry, bool) {
	return api.IPEntry{Prefix: netip.PrefixFrom(a, a.BitLen()), Identity: 1001, PrefixIdentity: 1 << 24, Labels: webLabels, Source: "local"}, true
}

func (f *fake) Explain(_ context.Context, q api.Question) (api.Explanation, error) {
	e := explain.Explanation{Verdict: types.Deny, Egress: &explain.Judgement{Direction: types.Egress,
		Rule:    policy.Match{Ref: types.RuleRef{Kind: types.KindDefaultDeny, Isolated: []types.Resource{allow}}, Entry: types.Entry{Rule: 3}},
		Losers:  []explain.Loser{{Match: policy.Match{Ref: ruleRef, Entry: types.Entry{Rule: 12, Verdict: types.Pass}}, Why: "it passed"}},
		Changes: []explain.Change{{Kind: explain.ChangeRule, Text: "with it", Rule: &ruleRef, Alone: true}}}}
	e.Port, e.Proto = q.Port, wiretypes.ProtoTCP
	return api.Explanation{Explanation: e, From: gen.Peer{Name: q.From.Namespace + "/" + q.From.Name, Identity: 1001}, To: gen.Peer{Name: q.To.Addr.String(), Identity: 2}}, nil
}

func (f *fake) HasEndpoint(id.Ref) bool { return true }

func (f *fake) Follow(ctx context.Context, subscribed func() error, emit func(gen.Event) error) error {
	if err := subscribed(); err != nil {
		return err
	}
	for _, port := range []uint16{443, 80} {
		e := gen.Event{Time: now, Type: gen.EventDrop, Verdict: gen.VerdictDeny, Destination: gen.EventPeer{Port: port, Identity: 2}, Rule: api.RuleModel(12, ruleRef)}
		if err := emit(e); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

type fakeIPAM struct{}

func (fakeIPAM) Allocate(_ context.Context, r api.LeaseRequest) (gen.Lease, error) {
	return gen.Lease{ID: "l1", Owner: r.Owner, Pool: "default", Ipv4: "10.0.0.7", Expires: now}, nil
}
func (fakeIPAM) Release(context.Context, netip.Addr, string) error { return nil }
func (fakeIPAM) Leases(context.Context) gen.IPAMStatus {
	return gen.IPAMStatus{Pools: []gen.Pool{{Name: "default", Ipv4: "10.0.0.0/24", Total4: 253, Used4: 1}}}
}

func (f *fake) Endpoints() []gen.Endpoint { return []gen.Endpoint{f.endpoint()} }
func (f *fake) endpoint() gen.Endpoint {
	return gen.Endpoint{ID: 5, State: gen.EndpointReady, ContainerID: "c1", Labels: webLabels.Strings(), Created: now,
		Interface: gen.Interface{HostName: "lxc1", ContainerName: "eth0", Mac: "02:00:00:00:00:01", HostMac: "02:00:00:00:00:02"},
		Policy:    gen.EndpointPolicy{Ingress: gen.Enforced, Egress: gen.Open, Slot: 3, Enforcement: gen.EnforcementNode}}
}
func (f *fake) Endpoint(ref id.Ref) (gen.Endpoint, bool) {
	return f.endpoint(), ref.Kind != id.KindLocal || ref.ID == 5
}
func (f *fake) Log(id.Ref) ([]gen.LogEntry, bool) {
	return []gen.LogEntry{{Time: now, State: "ready", Code: gen.LogOk, Station: "ready", Message: "built"}}, true
}
func (f *fake) Timeline(id.Ref) ([]gen.Station, bool) {
	return []gen.Station{{Name: "api.accept", Started: now, Finished: now, DurationMicros: 4}, {Name: "load", Started: now}}, true
}
func (f *fake) Health(context.Context, id.Ref) (gen.EndpointHealth, bool) {
	return gen.EndpointHealth{Overall: gen.StateOk, Bpf: gen.StateOk, Policy: gen.StateOk, Connected: true}, true
}
func (f *fake) Create(context.Context, endpointapi.Request) (gen.Endpoint, bool, error) {
	first := !f.made
	f.made = true
	return f.endpoint(), first, nil
}
func (f *fake) Delete(context.Context, id.Ref) (bool, []error) { return true, nil }
func (f *fake) Counters(ref id.Ref) ([]gen.RuleCounter, bool, error) {
	_, found := f.Endpoint(ref)
	return []gen.RuleCounter{{Direction: gen.DirectionIngress, Rule: gen.Rule{ID: 3, Kind: gen.RulePolicy}, Packets: 2, Bytes: 120}}, found, nil
}

func (f *fake) Change(_ context.Context, ref id.Ref, s gen.EndpointSettings) (gen.Endpoint, bool, error) {
	e, found := f.Endpoint(ref)
	e.Policy.Audit, e.Policy.Enforcement = s.Audit != nil && *s.Audit, cmp.Or(s.Enforcement, e.Policy.Enforcement)
	return e, found, nil
}

func (f *fake) DeleteContainer(context.Context, string, string, endpointapi.Only) (int, []error) {
	return 1, nil
}

type fakeKeeper struct{}

func (fakeKeeper) Sources(context.Context) []gen.Source {
	return []gen.Source{{Path: "/etc/weir/objects", State: gen.SourceGood, Files: []gen.SourceFile{}}}
}

func (fakeKeeper) Accept(_ context.Context, folder string) (gen.Source, error) {
	return gen.Source{Path: folder, State: gen.SourceGood, Files: []gen.SourceFile{}}, nil
}
