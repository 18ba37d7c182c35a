package api

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/policy/types"
	wiretypes "github.com/weirnet/weir/pkg/types"
)

// clusterwide stands for the empty namespace in a path.
const clusterwide = "-"

// ListPolicies answers with all policies in the order that breaks ties.
func (h *Handlers) ListPolicies(context.Context, gen.ListPoliciesRequestObject) (gen.ListPoliciesResponseObject, error) {
	if h.src.Policies == nil {
		return nil, notReady("policies")
	}
	revision, ps := h.src.Policies.Policies()
	ps = slices.Clone(ps)
	slices.SortFunc(ps, func(a, b *types.Policy) int { return a.Resource.Compare(b.Resource) })
	out := gen.PolicyList{Revision: revision, Policies: []gen.Policy{}}
	for _, p := range ps {
		out.Policies = append(out.Policies, policyModel(p))
	}
	return gen.ListPolicies200JSONResponse(out), nil
}

// GetPolicy answers with one policy.
func (h *Handlers) GetPolicy(_ context.Context, r gen.GetPolicyRequestObject) (gen.GetPolicyResponseObject, error) {
	if h.src.Policies == nil {
		return nil, notReady("policies")
	}
	want := types.Resource{Kind: r.Kind, Namespace: namespace(r.Namespace), Name: r.Name}
	_, ps := h.src.Policies.Policies()
	for _, p := range ps {
		if p.Resource.ID() == want.ID() {
			return gen.GetPolicy200JSONResponse(policyModel(p)), nil
		}
	}
	return nil, v1.Errorf(v1.CodeNotFound, "weir policy list shows those in force", "%s is not in force", want)
}

// GetPolicyRevision answers with the repository's and the realized revision.
func (h *Handlers) GetPolicyRevision(context.Context, gen.GetPolicyRevisionRequestObject) (gen.GetPolicyRevisionResponseObject, error) {
	if h.src.Policies == nil {
		return nil, notReady("policies")
	}
	revision, _ := h.src.Policies.Policies()
	return gen.GetPolicyRevision200JSONResponse{Revision: revision, Realized: h.src.Policies.Realized()}, nil
}

// PutPolicy applies a document.
func (h *Handlers) PutPolicy(ctx context.Context, r gen.PutPolicyRequestObject) (gen.PutPolicyResponseObject, error) {
	if h.src.Editor == nil {
		return nil, notReady("policy repository")
	}
	doc, err := document(r.Body)
	if err != nil {
		return nil, err
	}
	change, err := h.src.Editor.Apply(ctx, value(r.Params.File), doc)
	if err != nil {
		kept(ctx, change)
		return nil, err
	}
	return gen.PutPolicy200JSONResponse(changeModel(change)), nil
}

// DeletePolicy takes one policy away.
func (h *Handlers) DeletePolicy(ctx context.Context, r gen.DeletePolicyRequestObject) (gen.DeletePolicyResponseObject, error) {
	if h.src.Editor == nil {
		return nil, notReady("policy repository")
	}
	change, err := h.src.Editor.Delete(ctx, r.Kind, namespace(r.Namespace), r.Name)
	if err != nil {
		kept(ctx, change)
		return nil, err
	}
	return gen.DeletePolicy200JSONResponse(changeModel(change)), nil
}

// ValidatePolicy checks a document.
func (h *Handlers) ValidatePolicy(ctx context.Context, r gen.ValidatePolicyRequestObject) (gen.ValidatePolicyResponseObject, error) {
	if h.src.Editor == nil {
		return nil, notReady("policy repository")
	}
	doc, err := document(r.Body)
	if err != nil {
		return nil, err
	}
	v := h.src.Editor.Validate(ctx, value(r.Params.File), doc)
	out := gen.Validation{Valid: true, Policies: refModels(v.Resources), Problems: []gen.Problem{}}
	for _, p := range v.Problems {
		out.Valid = out.Valid && p.Warning
		out.Problems = append(out.Problems, problemModel(p))
	}
	return gen.ValidatePolicy200JSONResponse(out), nil
}

// ListSources answers with the folders and their files.
func (h *Handlers) ListSources(ctx context.Context, _ gen.ListSourcesRequestObject) (gen.ListSourcesResponseObject, error) {
	if h.src.Keeper == nil {
		return nil, notReady("sources")
	}
	return gen.ListSources200JSONResponse{Sources: orEmpty(h.src.Keeper.Sources(ctx))}, nil
}

// AcceptSource takes a folder as it is.
func (h *Handlers) AcceptSource(ctx context.Context, r gen.AcceptSourceRequestObject) (gen.AcceptSourceResponseObject, error) {
	if h.src.Keeper == nil {
		return nil, notReady("sources")
	}
	if r.Params.Path == "" {
		return nil, v1.Errorf(v1.CodeInvalid, "name the folder; weir source list shows them", "path is empty")
	}
	s, err := h.src.Keeper.Accept(ctx, r.Params.Path)
	if err != nil {
		return nil, err
	}
	return gen.AcceptSource200JSONResponse(s), nil
}

// GetRule answers with the rule behind a number.
func (h *Handlers) GetRule(_ context.Context, r gen.GetRuleRequestObject) (gen.GetRuleResponseObject, error) {
	if h.src.Policies == nil {
		return nil, notReady("rules")
	}
	ref, ok := h.src.Policies.Rule(types.RuleID(r.ID))
	if !ok {
		return nil, v1.Errorf(v1.CodeNotFound, "numbers come from events, flows and weir bpf policy", "no rule has the number %d", r.ID)
	}
	return gen.GetRule200JSONResponse(RuleModel(types.RuleID(r.ID), ref)), nil
}

// GetWhy judges a connection.
func (h *Handlers) GetWhy(ctx context.Context, r gen.GetWhyRequestObject) (gen.GetWhyResponseObject, error) {
	if h.src.Explainer == nil {
		return nil, notReady("policies")
	}
	q, err := question(r.Params)
	if err != nil {
		return nil, err
	}
	e, err := h.src.Explainer.Explain(ctx, q)
	if err != nil {
		return nil, err
	}
	return gen.GetWhy200JSONResponse(ExplanationModel(e)), nil
}

// question reads the parameters of GET /why.
func question(p gen.GetWhyParams) (q Question, err error) {
	if q.From, err = side("from", p.From); err != nil {
		return q, err
	}
	if q.To, err = side("to", p.To); err != nil {
		return q, err
	}
	proto := wiretypes.ProtoTCP
	if text := value(p.Proto); text != "" {
		if proto, err = wiretypes.ParseProto(text); err != nil {
			return q, v1.NewError(v1.CodeInvalid, err, "")
		}
	}
	q.Proto = proto.String()
	port := value(p.Port)
	if proto.IsICMP() {
		q.PortName = port // the types of ICMP have names, and 0 is one
		return q, nil
	}
	switch n, err := strconv.ParseUint(port, 10, 16); {
	case proto.HasPorts() && port == "":
		return q, v1.Errorf(v1.CodeInvalid, "write DESTINATION:PORT/PROTOCOL", "port is missing, and %s has ports", proto)
	case port == "":
	case err == nil && n > 0:
		q.Port = uint16(n)
	case err == nil || strings.Trim(port, "0123456789") == "":
		return q, v1.Errorf(v1.CodeInvalid, "give 1 to 65535 or a port's name", "port %q is out of range", port)
	default:
		q.PortName = port
	}
	return q, nil
}

// side reads namespace/name, an endpoint id or an address.
func side(field, text string) (Side, error) {
	if a, err := parseAddr(field, text); err == nil {
		return Side{Addr: a}, nil
	}
	if ns, name, ok := strings.Cut(text, "/"); ok && ns != "" && name != "" && !strings.Contains(name, "/") {
		return Side{Namespace: ns, Name: name}, nil
	}
	if n, err := id.ParseNumber(text); err == nil {
		return Side{Endpoint: n}, nil
	}
	return Side{}, v1.Errorf(v1.CodeInvalid, "write namespace/name of a pod, an endpoint id or an IP address", "%s: %q names nothing", field, text)
}

func document(r io.Reader) ([]byte, error) {
	if r == nil {
		r = strings.NewReader("")
	}
	doc, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	if strings.TrimSpace(string(doc)) == "" {
		return nil, v1.Errorf(v1.CodeInvalid, "send the objects as YAML or JSON", "the document is empty")
	}
	return doc, nil
}

func namespace(segment string) string {
	if segment == clusterwide {
		return ""
	}
	return segment
}

func problemModel(p Problem) gen.Problem {
	return gen.Problem{File: p.File, Line: p.Line, Field: p.Field, Text: p.Text, Warning: p.Warning}
}
