package api

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// fake is an agent with some endpoints.
type fake struct {
	endpoints []gen.Endpoint
	timeline  []gen.Station
	create    func(context.Context, Request) (gen.Endpoint, bool, error)
	problems  []error
	deleted   []string
}

func (f *fake) Endpoints() []gen.Endpoint { return f.endpoints }
func (f *fake) Endpoint(ref id.Ref) (gen.Endpoint, bool) {
	for _, e := range f.endpoints {
		if ref.Kind == id.KindLocal && e.ID == ref.ID || ref.Kind == id.KindContainer && e.ContainerID == ref.Text {
			return e, true
		}
	}
	return gen.Endpoint{}, false
}
func (f *fake) Log(id.Ref) ([]gen.LogEntry, bool)     { return nil, true }
func (f *fake) Timeline(id.Ref) ([]gen.Station, bool) { return f.timeline, f.timeline != nil }
func (f *fake) Health(_ context.Context, ref id.Ref) (gen.EndpointHealth, bool) {
	_, ok := f.Endpoint(ref)
	return gen.EndpointHealth{Overall: gen.StateOk}, ok
}
func (f *fake) Create(ctx context.Context, r Request) (gen.Endpoint, bool, error) {
	return f.create(ctx, r)
}
func (f *fake) Delete(_ context.Context, ref id.Ref) (bool, []error) {
	_, ok := f.Endpoint(ref)
	f.deleted = append(f.deleted, ref.String())
	return ok, f.problems
}
func (f *fake) Counters(ref id.Ref) ([]gen.RuleCounter, bool, error) {
	_, found := f.Endpoint(ref)
	return []gen.RuleCounter{{Direction: gen.DirectionIngress, Rule: gen.Rule{ID: 3, Kind: gen.RulePolicy}, Packets: 2, Bytes: 120}}, found, nil
}

func (f *fake) Change(_ context.Context, ref id.Ref, s gen.EndpointSettings) (gen.Endpoint, bool, error) {
	e, found := f.Endpoint(ref)
	if s.Audit != nil {
		e.Policy.Audit = *s.Audit
	}
	e.Policy.Enforcement = s.Enforcement
	return e, found, nil
}

func (f *fake) DeleteContainer(_ context.Context, containerID, ifName string, _ Only) (int, []error) {
	f.deleted = append(f.deleted, containerID+"/"+ifName)
	return 0, f.problems
}

func handlers(f *fake) *Handlers { return NewHandlers(f, f, f) }

// good is a request that passes; each bad case changes one thing.
func good() gen.EndpointRequest {
	return gen.EndpointRequest{
		ContainerID: "abc123", Pod: gen.PodRef{Namespace: "shop", Name: "web", UID: "u"}, LeaseID: "l1", Sync: true,
		Interface:  gen.Interface{HostName: "lxc0123456789ab", HostIndex: 7, ContainerName: "eth0", Mac: "02:00:00:00:00:01", HostMac: "02:00:00:00:00:02"},
		Addressing: gen.Addressing{Ipv4: "10.0.0.7", Ipv6: "fd00::7"},
	}
}

const goodID = "cni-attachment-id:abc123:eth0"

func TestPutReadsTheRequestAndAnswersCreatedOnce(t *testing.T) {
	var got Request
	created := true
	h := handlers(&fake{create: func(_ context.Context, r Request) (gen.Endpoint, bool, error) {
		got = r
		return gen.Endpoint{ID: 5, State: gen.EndpointReady}, created, nil
	}})
	body := good()
	resp, err := h.PutEndpoint(t.Context(), gen.PutEndpointRequestObject{ID: goodID, Body: &body})
	require.NoError(t, err)
	require.IsType(t, gen.PutEndpoint201JSONResponse{}, resp)
	require.Equal(t, netip.MustParseAddr("10.0.0.7"), got.IPv4)
	require.Equal(t, "02:00:00:00:00:02", got.HostMAC.String())
	require.Equal(t, "abc123:eth0", got.Key())
	require.Equal(t, "l1", got.LeaseID)
	created = false
	resp, err = h.PutEndpoint(t.Context(), gen.PutEndpointRequestObject{ID: goodID, Body: &body})
	require.NoError(t, err)
	require.IsType(t, gen.PutEndpoint200JSONResponse{}, resp)
}

func TestAWaitOfAnyLengthIsBounded(t *testing.T) {
	var left time.Duration
	h := handlers(&fake{create: func(ctx context.Context, _ Request) (gen.Endpoint, bool, error) {
		end, _ := ctx.Deadline()
		left = time.Until(end)
		return gen.Endpoint{ID: 5}, true, nil
	}})
	body := good()
	body.TimeoutSeconds = 1_000_000_000_000_000_000
	_, err := h.PutEndpoint(t.Context(), gen.PutEndpointRequestObject{ID: goodID, Body: &body})
	require.NoError(t, err)
	require.Positive(t, left)
}

func TestPutRefusesABadFieldByNameAndCreatesNothing(t *testing.T) {
	h := handlers(&fake{create: func(context.Context, Request) (gen.Endpoint, bool, error) {
		t.Error("Create was called")
		return gen.Endpoint{}, false, nil
	}})
	for field, change := range map[string]func(*gen.EndpointRequest){
		"containerId":             func(r *gen.EndpointRequest) { r.ContainerID = "../../etc" },
		"id":                      func(r *gen.EndpointRequest) { r.ContainerID = "other" },
		"interface.containerName": func(r *gen.EndpointRequest) { r.Interface.ContainerName = "a/b" },
		"interface.hostName":      func(r *gen.EndpointRequest) { r.Interface.HostName = "0123456789abcdef" },
		"interface.hostIndex":     func(r *gen.EndpointRequest) { r.Interface.HostIndex = 0 },
		"interface.mac":           func(r *gen.EndpointRequest) { r.Interface.Mac = "01:00:5e:00:00:01" },
		"interface.hostMac":       func(r *gen.EndpointRequest) { r.Interface.HostMac = "" },
		"addressing.ipv4":         func(r *gen.EndpointRequest) { r.Addressing.Ipv4 = "fd00::1" },
		"addressing.ipv6":         func(r *gen.EndpointRequest) { r.Addressing.Ipv6 = "fe80::1" },
		"addressing":              func(r *gen.EndpointRequest) { r.Addressing = gen.Addressing{} },
		"labels":                  func(r *gen.EndpointRequest) { r.Labels = map[string]string{"io.kubernetes.pod.namespace": "a/b"} },
	} {
		body := good()
		change(&body)
		_, err := h.PutEndpoint(t.Context(), gen.PutEndpointRequestObject{ID: goodID, Body: &body})
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err), field)
		require.ErrorContains(t, err, "field "+field+":")
	}
	body := good()
	for _, ref := range []string{"5", "container-id:abc123", "nonsense:1"} {
		_, err := h.PutEndpoint(t.Context(), gen.PutEndpointRequestObject{ID: ref, Body: &body})
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err), ref)
	}
}

// stuck is an error that knows how far the endpoint came.
type stuck struct{ error }

func (stuck) Stations() (last, waiting regeneration.Station) {
	return regeneration.StationMetadata, regeneration.StationIdentity
}

func TestAFailedPutNamesTheLastFinishedStationAndTheOneWaitedFor(t *testing.T) {
	now := time.Now()
	var failure error
	f := &fake{create: func(ctx context.Context, _ Request) (gen.Endpoint, bool, error) {
		if failure != nil {
			return gen.Endpoint{}, false, failure
		}
		<-ctx.Done()
		return gen.Endpoint{}, false, ctx.Err()
	}}
	put := func() *v1.Error {
		body := good()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := handlers(f).PutEndpoint(ctx, gen.PutEndpointRequestObject{ID: goodID, Body: &body})
		var e *v1.Error
		require.ErrorAs(t, err, &e)
		return e
	}
	f.timeline = []gen.Station{{Name: "api.accept", Started: now, Finished: now}, {Name: "policy.resolve", Started: now, Finished: now}, {Name: "load", Started: now}}
	e := put()
	require.Equal(t, v1.CodeTimeout, e.Code)
	require.Equal(t, [2]string{"policy.resolve", "load"}, [2]string{e.LastStation, e.WaitingFor})

	f.timeline[2] = gen.Station{Name: "load", Started: now, Finished: now}
	require.Equal(t, "policy.swap", put().WaitingFor, "between two stations the next one is waited for")

	f.timeline[2].Error = "verifier"
	e = put()
	require.Equal(t, [2]string{"policy.resolve", "load"}, [2]string{e.LastStation, e.WaitingFor})

	failure = stuck{errors.New("allocator is full")}
	e = put()
	require.Equal(t, v1.CodeInternal, e.Code)
	require.Equal(t, [2]string{"metadata", "identity"}, [2]string{e.LastStation, e.WaitingFor})
	require.Contains(t, e.Text, "allocator is full")

	failure = v1.Errorf(v1.CodeConflict, "delete the other one first", "the address is in use")
	e = put()
	require.Equal(t, v1.CodeConflict, e.Code)
	require.Empty(t, e.LastStation)
}

func TestListFiltersByLabelAndState(t *testing.T) {
	h := handlers(&fake{endpoints: []gen.Endpoint{
		{ID: 9, State: gen.EndpointReady, Labels: []string{"k8s:app=web", "k8s:tier=front"}},
		{ID: 3, State: gen.EndpointRegenerating, Labels: []string{"container:app=web"}},
		{ID: 5, State: gen.EndpointReady},
	}})
	ids := func(p gen.ListEndpointsParams) (out []uint16) {
		resp, err := h.ListEndpoints(t.Context(), gen.ListEndpointsRequestObject{Params: p})
		require.NoError(t, err)
		for _, e := range resp.(gen.ListEndpoints200JSONResponse) {
			out = append(out, e.ID)
			require.NotNil(t, e.Labels)
		}
		return out
	}
	require.Equal(t, []uint16{3, 5, 9}, ids(gen.ListEndpointsParams{}))
	require.Equal(t, []uint16{3, 9}, ids(gen.ListEndpointsParams{Label: []string{"app=web"}}))
	require.Equal(t, []uint16{9}, ids(gen.ListEndpointsParams{Label: []string{"k8s:app=web"}}))
	require.Empty(t, ids(gen.ListEndpointsParams{Label: []string{"app=web", "tier=back"}}))
	require.Equal(t, []uint16{5, 9}, ids(gen.ListEndpointsParams{State: []gen.EndpointState{gen.EndpointReady}}))
	for _, p := range []gen.ListEndpointsParams{{State: []gen.EndpointState{"asleep"}}, {Label: []string{""}}} {
		_, err := h.ListEndpoints(t.Context(), gen.ListEndpointsRequestObject{Params: p})
		require.Equal(t, v1.CodeInvalid, v1.CodeOf(err))
	}
}

func TestDeleteIsToleratedForContainersAndStrictForIDs(t *testing.T) {
	f := &fake{endpoints: []gen.Endpoint{{ID: 4}}, problems: []error{errors.New("pin is busy")}}
	h := handlers(f)
	resp, err := h.DeleteEndpoint(t.Context(), gen.DeleteEndpointRequestObject{ID: "4"})
	require.NoError(t, err)
	require.Equal(t, gen.DeleteEndpoint200JSONResponse{Deleted: 1, Errors: 1, Texts: []string{"pin is busy"}}, resp)
	_, err = h.DeleteEndpoint(t.Context(), gen.DeleteEndpointRequestObject{ID: "5"})
	require.Equal(t, v1.CodeNotFound, v1.CodeOf(err))
	f.problems = nil
	ifName := "eth0"
	got, err := h.DeleteEndpoints(t.Context(), gen.DeleteEndpointsRequestObject{Params: gen.DeleteEndpointsParams{ContainerID: "c", Interface: &ifName}})
	require.NoError(t, err)
	require.Equal(t, gen.DeleteEndpoints200JSONResponse{}, got)
	require.Equal(t, "c/eth0", f.deleted[len(f.deleted)-1])
	_, err = h.DeleteEndpoints(t.Context(), gen.DeleteEndpointsRequestObject{})
	require.Equal(t, v1.CodeInvalid, v1.CodeOf(err))
}

func TestUnknownEndpointsAreNotFoundAndBadReferencesInvalid(t *testing.T) {
	h := handlers(&fake{})
	_, err := h.GetEndpoint(t.Context(), gen.GetEndpointRequestObject{ID: "17"})
	require.Equal(t, v1.CodeNotFound, v1.CodeOf(err))
	_, err = h.GetEndpointTimeline(t.Context(), gen.GetEndpointTimelineRequestObject{ID: "17"})
	require.Equal(t, v1.CodeNotFound, v1.CodeOf(err))
	_, err = h.GetEndpointHealthz(t.Context(), gen.GetEndpointHealthzRequestObject{ID: "17"})
	require.Equal(t, v1.CodeNotFound, v1.CodeOf(err))
	_, err = h.GetEndpointLog(t.Context(), gen.GetEndpointLogRequestObject{ID: "x:1"})
	require.Equal(t, v1.CodeInvalid, v1.CodeOf(err))
}
