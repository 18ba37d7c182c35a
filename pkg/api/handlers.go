package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

// Handlers answers every operation of the spec but those below /endpoint. It is
// embedded beside the handlers of endpoint/api.
type Handlers struct {
	src      Sources
	software string
}

// NewHandlers makes handlers over the sources; software is the agent's version.
func NewHandlers(src Sources, software string) *Handlers {
	return &Handlers{src: src, software: software}
}

func notReady(what string) error {
	return v1.Errorf(v1.CodeNotReady, "try again when weir status says ready", "the agent has no %s yet", what)
}

// GetHealthz answers with the status even when the agent is not well.
func (h *Handlers) GetHealthz(ctx context.Context, _ gen.GetHealthzRequestObject) (gen.GetHealthzResponseObject, error) {
	if h.src.Status == nil {
		return nil, notReady("status")
	}
	s := h.src.Status.Status(ctx)
	s.Version, s.APIVersion = h.software, v1.Version
	s.Components = orEmpty(s.Components)
	return gen.GetHealthz200JSONResponse(s), nil
}

// GetConfig answers with the configuration in force.
func (h *Handlers) GetConfig(ctx context.Context, _ gen.GetConfigRequestObject) (gen.GetConfigResponseObject, error) {
	if h.src.Status == nil {
		return nil, notReady("configuration")
	}
	c := h.src.Status.Config(ctx)
	c.Version, c.APIVersion = h.software, v1.Version
	c.Pools = orEmpty(c.Pools)
	return gen.GetConfig200JSONResponse(c), nil
}

// ListMaps answers with the kernel maps by name.
func (h *Handlers) ListMaps(ctx context.Context, _ gen.ListMapsRequestObject) (gen.ListMapsResponseObject, error) {
	if h.src.Status == nil {
		return nil, notReady("maps")
	}
	maps, err := h.src.Status.Maps(ctx)
	if err != nil {
		return nil, err
	}
	out := gen.MapList{Maps: orEmpty(slices.Clone(maps))}
	slices.SortFunc(out.Maps, func(a, b gen.MapInfo) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range out.Maps {
		out.TotalBytes += m.Bytes
	}
	return gen.ListMaps200JSONResponse(out), nil
}

// ListIdentities answers with the identities that have every label asked for.
func (h *Handlers) ListIdentities(_ context.Context, r gen.ListIdentitiesRequestObject) (gen.ListIdentitiesResponseObject, error) {
	if h.src.Identities == nil {
		return nil, notReady("identities")
	}
	sel, err := labelSelector(r.Params.Label)
	if err != nil {
		return nil, err
	}
	out := gen.ListIdentities200JSONResponse{}
	for _, id := range h.src.Identities.Identities() {
		if sel.Matches(id.LabelArray) {
			out = append(out, identityModel(id))
		}
	}
	slices.SortFunc(out, func(a, b gen.Identity) int { return int(int64(a.ID) - int64(b.ID)) })
	return out, nil
}

// GetIdentity answers with one identity.
func (h *Handlers) GetIdentity(_ context.Context, r gen.GetIdentityRequestObject) (gen.GetIdentityResponseObject, error) {
	if h.src.Identities == nil {
		return nil, notReady("identities")
	}
	id, ok := h.src.Identities.Identity(identity.NumericIdentity(r.ID))
	if !ok {
		return nil, v1.Errorf(v1.CodeNotFound, "weir identity list shows those in use", "identity %d is not in use on this node", r.ID)
	}
	return gen.GetIdentity200JSONResponse(identityModel(id)), nil
}

func identityModel(id *identity.Identity) gen.Identity {
	scope := id.ID.Scope().String()
	if id.ID.IsReserved() {
		scope = "reserved"
	}
	return gen.Identity{ID: uint32(id.ID), Labels: orEmpty(id.LabelArray.Strings()), References: id.ReferenceCount, Scope: scope}
}

// ListIPs answers with the ipcache, or the entry an address resolves to.
func (h *Handlers) ListIPs(_ context.Context, r gen.ListIPsRequestObject) (gen.ListIPsResponseObject, error) {
	if h.src.IPs == nil {
		return nil, notReady("ipcache")
	}
	var entries []IPEntry
	if r.Params.IP != nil {
		addr, err := parseAddr("ip", *r.Params.IP)
		if err != nil {
			return nil, err
		}
		e, ok := h.src.IPs.LookupIP(addr)
		if !ok {
			return nil, v1.Errorf(v1.CodeNotFound, "weir ip list shows the prefixes", "no prefix of the ipcache holds %s", addr)
		}
		entries = []IPEntry{e}
	} else {
		entries = slices.Clone(h.src.IPs.IPs())
	}
	slices.SortFunc(entries, func(a, b IPEntry) int { return a.Prefix.Compare(b.Prefix) })
	out := gen.ListIPs200JSONResponse{}
	for _, e := range entries {
		if want := r.Params.Identity; want != nil && uint32(e.Identity) != *want && uint32(e.PrefixIdentity) != *want {
			continue
		}
		out = append(out, gen.IPEntry{Prefix: e.Prefix.String(), Identity: uint32(e.Identity),
			PrefixIdentity: uint32(e.PrefixIdentity), Labels: e.Labels.Strings(), Source: e.Source})
	}
	return out, nil
}

// GetIPAM answers with pools and leases.
func (h *Handlers) GetIPAM(ctx context.Context, _ gen.GetIPAMRequestObject) (gen.GetIPAMResponseObject, error) {
	if h.src.IPAM == nil {
		return nil, notReady("address pools")
	}
	s := h.src.IPAM.Leases(ctx)
	s.Pools, s.Leases = orEmpty(s.Pools), orEmpty(s.Leases)
	return gen.GetIPAM200JSONResponse(s), nil
}

// PostIPAM leases addresses.
func (h *Handlers) PostIPAM(ctx context.Context, r gen.PostIPAMRequestObject) (gen.PostIPAMResponseObject, error) {
	if h.src.IPAM == nil {
		return nil, notReady("address pools")
	}
	req := LeaseRequest{Owner: r.Body.Owner, Pod: r.Body.Pod, Pool: r.Body.Pool, IPv4: r.Body.Ipv4, IPv6: r.Body.Ipv6, Expires: r.Body.Expires}
	if req.Owner == "" {
		return nil, v1.Errorf(v1.CodeInvalid, "name the pod or the container", "owner is empty")
	}
	families := map[bool]bool{}
	for _, text := range r.Body.Requested {
		addr, err := parseAddr("requested", text)
		if err != nil {
			return nil, err
		}
		if families[addr.Is4()] {
			return nil, v1.Errorf(v1.CodeInvalid, "ask for one address of each family at the most", "requested: %s is the second address of its family", addr)
		}
		families[addr.Is4()] = true
		req.Requested = append(req.Requested, addr)
	}
	lease, err := h.src.IPAM.Allocate(ctx, req)
	if err != nil {
		return nil, err
	}
	return gen.PostIPAM201JSONResponse(lease), nil
}

// DeleteIPAM releases a lease.
func (h *Handlers) DeleteIPAM(ctx context.Context, r gen.DeleteIPAMRequestObject) (gen.DeleteIPAMResponseObject, error) {
	if h.src.IPAM == nil {
		return nil, notReady("address pools")
	}
	addr, err := parseAddr("ip", r.IP)
	if err != nil {
		return nil, err
	}
	if err := h.src.IPAM.Release(ctx, addr, value(r.Params.Lease)); err != nil {
		return nil, err
	}
	return gen.DeleteIPAM204Response{}, nil
}

// labelSelector makes a selector of source:key=value texts.
func labelSelector(texts []string) (labels.Selector, error) {
	var rs []labels.Requirement
	for _, text := range texts {
		l, err := labels.Parse(text)
		if err != nil {
			return labels.Selector{}, v1.NewError(v1.CodeInvalid, err, "")
		}
		if l.Source == labels.SourceUnspec {
			l.Source = labels.SourceAny
		}
		rs = append(rs, labels.Requirement{Source: l.Source, Key: l.Key, Operator: labels.In, Values: []string{l.Value}})
	}
	return labels.NewSelector(rs...), nil
}

func parseAddr(field, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, v1.Errorf(v1.CodeInvalid, "write an address such as 10.0.0.7 or fd00::7", "%s: %q is not an IP address", field, text)
	}
	return a.Unmap(), nil
}

// writeJSON answers with a body; a failure to send means that the client left.
func writeJSON(w http.ResponseWriter, status int, v any) {
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(v); err != nil {
		http.Error(w, "encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = buf.WriteTo(w)
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
