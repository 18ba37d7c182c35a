package api

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/labels"
)

// defaultSync is how long a synchronous PUT waits where the caller does not
// say; maxSync is the most it may say (schema EndpointRequest). A change of
// settings ends before clients give up, so that they are told what is in force.
const (
	defaultSync = 60 * time.Second
	maxSync     = 600 * time.Second
	changeTime  = 15 * time.Second
)

// reader looks endpoints up. The bool is false where the reference means none.
type reader interface {
	Endpoints() []gen.Endpoint
	Endpoint(ref id.Ref) (gen.Endpoint, bool)
}

// historian knows what an endpoint went through and how it is. Log and
// timeline are oldest first.
type historian interface {
	Log(ref id.Ref) ([]gen.LogEntry, bool)
	Timeline(ref id.Ref) ([]gen.Station, bool)
	Health(ctx context.Context, ref id.Ref) (gen.EndpointHealth, bool)
	Counters(ref id.Ref) (c []gen.RuleCounter, found bool, err error)
}

// writer makes and removes endpoints.
type writer interface {
	// Create returns the attachment's endpoint; created is false when the same
	// request was answered before. With r.Sync it waits for the state ready or
	// the end of ctx. Failures the caller can mend are *v1.Error; an error with a
	// method Stations() (last, waiting regeneration.Station) tells how far it came.
	Create(ctx context.Context, r Request) (e gen.Endpoint, created bool, err error)
	// Change puts settings of an endpoint into force; false where there is none.
	Change(ctx context.Context, ref id.Ref, s gen.EndpointSettings) (e gen.Endpoint, found bool, err error)
	// Delete removes one endpoint; false where there is none. Problems are what
	// could not be removed; the endpoint is gone all the same.
	Delete(ctx context.Context, ref id.Ref) (found bool, problems []error)
	// DeleteContainer removes the endpoints of a container, or the one of
	// ifName where that is not empty.
	DeleteContainer(ctx context.Context, containerID, ifName string, only Only) (deleted int, problems []error)
}

// Only narrows which endpoints of a container are meant. Its zero value is all.
type Only struct {
	HostIndex int       // of the link on the node; 0: any
	Before    time.Time // made before; zero: any time
}

// Means reports whether an endpoint is one of them.
func (o Only) Means(hostIndex int, created time.Time) bool {
	return (o.HostIndex == 0 || o.HostIndex == hostIndex) && (o.Before.IsZero() || created.Before(o.Before))
}

// Handlers answers the operations below /endpoint.
type Handlers struct {
	read    reader
	history historian
	write   writer
}

// NewHandlers makes handlers over the parts of the agent that know endpoints.
func NewHandlers(r reader, h historian, w writer) *Handlers {
	return &Handlers{read: r, history: h, write: w}
}

// ListEndpoints answers with the endpoints by id that pass both filters.
func (h *Handlers) ListEndpoints(_ context.Context, r gen.ListEndpointsRequestObject) (gen.ListEndpointsResponseObject, error) {
	var want []labels.Requirement
	for _, text := range r.Params.Label {
		l, err := labels.Parse(text)
		if err != nil {
			return nil, v1.NewError(v1.CodeInvalid, err, "")
		}
		if l.Source == labels.SourceUnspec {
			l.Source = labels.SourceAny
		}
		want = append(want, labels.Requirement{Source: l.Source, Key: l.Key, Operator: labels.In, Values: []string{l.Value}})
	}
	for _, s := range r.Params.State {
		if !s.Valid() {
			return nil, v1.Errorf(v1.CodeInvalid, "see the schema EndpointState for the states", "state: %q is not known", s)
		}
	}
	sel := labels.NewSelector(want...)
	out := gen.ListEndpoints200JSONResponse{}
	for _, e := range h.read.Endpoints() {
		if len(r.Params.State) > 0 && !slices.Contains(r.Params.State, e.State) {
			continue
		}
		if !sel.IsEmpty() {
			have, err := labels.ParseArray(e.Labels...)
			if err != nil {
				return nil, v1.Errorf(v1.CodeInternal, "report it", "labels of endpoint %d: %w", e.ID, err)
			}
			if !sel.Matches(have) {
				continue
			}
		}
		out = append(out, complete(e))
	}
	slices.SortFunc(out, func(a, b gen.Endpoint) int { return int(a.ID) - int(b.ID) })
	return out, nil
}

// GetEndpoint answers with one endpoint.
func (h *Handlers) GetEndpoint(_ context.Context, r gen.GetEndpointRequestObject) (gen.GetEndpointResponseObject, error) {
	e, err := find(r.ID, h.read.Endpoint)
	if err != nil {
		return nil, err
	}
	return gen.GetEndpoint200JSONResponse(complete(e)), nil
}

// GetEndpointLog answers with the endpoint's log.
func (h *Handlers) GetEndpointLog(_ context.Context, r gen.GetEndpointLogRequestObject) (gen.GetEndpointLogResponseObject, error) {
	entries, err := find(r.ID, h.history.Log)
	if err != nil {
		return nil, err
	}
	return gen.GetEndpointLog200JSONResponse(append([]gen.LogEntry{}, entries...)), nil
}

// GetEndpointTimeline answers with the stations passed.
func (h *Handlers) GetEndpointTimeline(_ context.Context, r gen.GetEndpointTimelineRequestObject) (gen.GetEndpointTimelineResponseObject, error) {
	stations, err := find(r.ID, h.history.Timeline)
	if err != nil {
		return nil, err
	}
	return gen.GetEndpointTimeline200JSONResponse(append([]gen.Station{}, stations...)), nil
}

// GetEndpointCounters answers with what the rules of the endpoint let through.
func (h *Handlers) GetEndpointCounters(_ context.Context, r gen.GetEndpointCountersRequestObject) (gen.GetEndpointCountersResponseObject, error) {
	var failed error
	out, err := find(r.ID, func(ref id.Ref) (c []gen.RuleCounter, found bool) {
		c, found, failed = h.history.Counters(ref)
		return c, found
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return gen.GetEndpointCounters200JSONResponse(append([]gen.RuleCounter{}, out...)), nil
}

// GetEndpointHealthz answers with the endpoint's health.
func (h *Handlers) GetEndpointHealthz(ctx context.Context, r gen.GetEndpointHealthzRequestObject) (gen.GetEndpointHealthzResponseObject, error) {
	health, err := find(r.ID, func(ref id.Ref) (gen.EndpointHealth, bool) { return h.history.Health(ctx, ref) })
	if err != nil {
		return nil, err
	}
	return gen.GetEndpointHealthz200JSONResponse(health), nil
}

// PatchEndpoint changes settings of an endpoint.
func (h *Handlers) PatchEndpoint(ctx context.Context, r gen.PatchEndpointRequestObject) (gen.PatchEndpointResponseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	var failed error
	e, err := find(r.ID, func(ref id.Ref) (e gen.Endpoint, found bool) {
		e, found, failed = h.write.Change(ctx, ref, *r.Body)
		return e, found
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return gen.PatchEndpoint200JSONResponse(complete(e)), nil
}

// PutEndpoint creates an endpoint, or returns the one that the same request made.
func (h *Handlers) PutEndpoint(ctx context.Context, r gen.PutEndpointRequestObject) (gen.PutEndpointResponseObject, error) {
	ref, err := parse(r.ID)
	if err != nil {
		return nil, err
	}
	req, err := newRequest(ref, r.Body)
	if err != nil {
		return nil, err
	}
	wait := defaultSync
	if n := r.Body.TimeoutSeconds; n > 0 { // bounded before it is multiplied
		wait = time.Duration(min(n, int(maxSync/time.Second))) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	e, created, err := h.write.Create(ctx, req)
	if err != nil {
		return nil, h.howFar(ref, req, err)
	}
	if created {
		return gen.PutEndpoint201JSONResponse(complete(e)), nil
	}
	return gen.PutEndpoint200JSONResponse(complete(e)), nil
}

// DeleteEndpoint removes one endpoint.
func (h *Handlers) DeleteEndpoint(ctx context.Context, r gen.DeleteEndpointRequestObject) (gen.DeleteEndpointResponseObject, error) {
	ref, err := parse(r.ID)
	if err != nil {
		return nil, err
	}
	found, problems := h.write.Delete(ctx, ref)
	if !found {
		return nil, notFound(ref)
	}
	return gen.DeleteEndpoint200JSONResponse(deleteResult(1, problems)), nil
}

// DeleteEndpoints removes a container's endpoints; none is a success.
func (h *Handlers) DeleteEndpoints(ctx context.Context, r gen.DeleteEndpointsRequestObject) (gen.DeleteEndpointsResponseObject, error) {
	if r.Params.ContainerID == "" {
		return nil, invalid("container-id", "is empty")
	}
	ifName := ""
	if r.Params.Interface != nil {
		ifName = *r.Params.Interface
	}
	only := Only{}
	if r.Params.HostIndex != nil {
		only.HostIndex = *r.Params.HostIndex
	}
	n, problems := h.write.DeleteContainer(ctx, r.Params.ContainerID, ifName, only)
	return gen.DeleteEndpoints200JSONResponse(deleteResult(n, problems)), nil
}

// howFar adds the stations to a failure of Create: from the error itself, or
// from the endpoint's timeline if it is still there.
func (h *Handlers) howFar(ref id.Ref, r Request, err error) error {
	var e *v1.Error
	if !errors.As(err, &e) {
		code, next := v1.CodeInternal, "see weir endpoint log and the agent's log"
		if errors.Is(err, context.DeadlineExceeded) {
			code, next = v1.CodeTimeout, "weir status tells what the agent waits for; the runtime tries again"
		}
		e = v1.Errorf(code, next, "create the endpoint of %s: %w", r.Key(), err)
	}
	if e.LastStation != "" || e.WaitingFor != "" || e.Code == v1.CodeInvalid || e.Code == v1.CodeConflict {
		return e
	}
	out := *e
	var s interface {
		Stations() (last, waiting regeneration.Station)
	}
	if errors.As(err, &s) {
		last, waiting := s.Stations()
		out.LastStation, out.WaitingFor = string(last), string(waiting)
		return &out
	}
	out.LastStation, out.WaitingFor = string(regeneration.StationAPIAccept), string(regeneration.StationCreated)
	if stations, ok := h.history.Timeline(ref); ok {
		out.LastStation, out.WaitingFor = progress(stations)
	}
	return &out
}

// progress finds the last finished station and the one after it.
func progress(passed []gen.Station) (last, waiting string) {
	all := regeneration.Stations()
	at := -1
	for _, s := range passed {
		i := slices.Index(all, regeneration.Station(s.Name))
		if i > at && !s.Finished.IsZero() && s.Error == "" {
			at = i
		}
	}
	if at >= 0 {
		last = string(all[at])
	}
	for _, s := range passed {
		if s.Finished.IsZero() || s.Error != "" {
			return last, s.Name
		}
	}
	if at+1 < len(all) {
		waiting = string(all[at+1])
	}
	return last, waiting
}

func parse(text string) (id.Ref, error) {
	ref, err := id.Parse(text)
	if err != nil {
		return ref, v1.NewError(v1.CodeInvalid, err, "")
	}
	return ref, nil
}

func find[T any](text string, get func(id.Ref) (T, bool)) (T, error) {
	var zero T
	ref, err := parse(text)
	if err != nil {
		return zero, err
	}
	v, ok := get(ref)
	if !ok {
		return zero, notFound(ref)
	}
	return v, nil
}

func notFound(ref id.Ref) error {
	return v1.Errorf(v1.CodeNotFound, "weir endpoint list shows those of this node", "no endpoint answers to %s", ref)
}

func deleteResult(n int, problems []error) gen.DeleteResult {
	out := gen.DeleteResult{Deleted: n, Errors: len(problems)}
	for _, p := range problems {
		out.Texts = append(out.Texts, p.Error())
	}
	return out
}

// complete fills in the lists that the spec requires.
func complete(e gen.Endpoint) gen.Endpoint {
	if e.Labels == nil {
		e.Labels = []string{}
	}
	if e.Identity.Labels == nil {
		e.Identity.Labels = []string{}
	}
	return e
}
