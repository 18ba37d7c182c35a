package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
)

// clusterwide stands for the empty namespace in a path (spec, /policy/{kind}/{namespace}/{name}).
const clusterwide = "-"

// Status asks how the agent is.
func (c *Client) Status(ctx context.Context) (gen.Status, error) {
	v, _, err := call[gen.Status](ctx, c, "ask for the status", func(ctx context.Context) (*http.Response, error) { return c.api.GetHealthz(ctx) })
	return v, err
}

// Config asks for the configuration in force.
func (c *Client) Config(ctx context.Context) (gen.Config, error) {
	v, _, err := call[gen.Config](ctx, c, "ask for the configuration", func(ctx context.Context) (*http.Response, error) { return c.api.GetConfig(ctx) })
	return v, err
}

// Maps asks for the kernel maps and their memory.
func (c *Client) Maps(ctx context.Context) (gen.MapList, error) {
	v, _, err := call[gen.MapList](ctx, c, "list the maps", func(ctx context.Context) (*http.Response, error) { return c.api.ListMaps(ctx) })
	return v, err
}

// Endpoints lists the endpoints that have every label and one of the states;
// nil means any.
func (c *Client) Endpoints(ctx context.Context, labels []string, states []gen.EndpointState) ([]gen.Endpoint, error) {
	p := &gen.ListEndpointsParams{Label: labels, State: states}
	v, _, err := call[[]gen.Endpoint](ctx, c, "list the endpoints", func(ctx context.Context) (*http.Response, error) { return c.api.ListEndpoints(ctx, p) })
	return v, err
}

// Endpoint asks for one endpoint by any form of its id.
func (c *Client) Endpoint(ctx context.Context, id string) (gen.Endpoint, error) {
	v, _, err := call[gen.Endpoint](ctx, c, "look up endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpoint(ctx, id) })
	return v, err
}

// ChangeEndpoint puts settings of an endpoint into force.
func (c *Client) ChangeEndpoint(ctx context.Context, id string, s gen.EndpointSettings) (gen.Endpoint, error) {
	v, _, err := call[gen.Endpoint](ctx, c, "change endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.PatchEndpoint(ctx, id, s) })
	return v, err
}

// EndpointLog asks what happened to an endpoint.
func (c *Client) EndpointLog(ctx context.Context, id string) ([]gen.LogEntry, error) {
	v, _, err := call[[]gen.LogEntry](ctx, c, "read the log of endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointLog(ctx, id) })
	return v, err
}

// EndpointCounters asks what the flows carried that each rule allowed.
func (c *Client) EndpointCounters(ctx context.Context, id string) ([]gen.RuleCounter, error) {
	v, _, err := call[[]gen.RuleCounter](ctx, c, "read the counters of endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointCounters(ctx, id) })
	return v, err
}

// EndpointTimeline asks which stations an endpoint passed.
func (c *Client) EndpointTimeline(ctx context.Context, id string) ([]gen.Station, error) {
	v, _, err := call[[]gen.Station](ctx, c, "read the timeline of endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointTimeline(ctx, id) })
	return v, err
}

// EndpointHealth asks whether an endpoint works.
func (c *Client) EndpointHealth(ctx context.Context, id string) (gen.EndpointHealth, error) {
	v, _, err := call[gen.EndpointHealth](ctx, c, "ask for the health of endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointHealthz(ctx, id) })
	return v, err
}

// PutEndpoint asks for the endpoint of an attachment; created is false when it
// was there. With r.Sync the call may take r.TimeoutSeconds and a little more.
func (c *Client) PutEndpoint(ctx context.Context, r gen.EndpointRequest) (e gen.Endpoint, created bool, err error) {
	id := AttachmentID(r.ContainerID, r.Interface.ContainerName)
	limit := c.timeout
	if r.Sync {
		limit = max(limit, time.Duration(r.TimeoutSeconds)*time.Second+10*time.Second)
	}
	e, status, err := callWithin[gen.Endpoint](ctx, c, limit, "create endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.PutEndpoint(ctx, id, r) })
	return e, status == http.StatusCreated, err
}

// AttachmentID is the endpoint id of one interface of one container.
func AttachmentID(containerID, ifName string) string {
	return "cni-attachment-id:" + containerID + ":" + ifName
}

// DeleteEndpoint removes one endpoint.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) (gen.DeleteResult, error) {
	v, _, err := call[gen.DeleteResult](ctx, c, "delete endpoint "+id, func(ctx context.Context) (*http.Response, error) { return c.api.DeleteEndpoint(ctx, id) })
	return v, err
}

// DeleteContainer removes a container's endpoints, or the one of the interface
// where that is not empty. None there is a success.
func (c *Client) DeleteContainer(ctx context.Context, containerID, ifName string) (gen.DeleteResult, error) {
	p := &gen.DeleteEndpointsParams{ContainerID: containerID, Interface: optional(ifName)}
	v, _, err := call[gen.DeleteResult](ctx, c, "delete the endpoints of container "+containerID, func(ctx context.Context) (*http.Response, error) { return c.api.DeleteEndpoints(ctx, p) })
	return v, err
}

// Sources lists the folders that objects are read from.
func (c *Client) Sources(ctx context.Context) (gen.SourceList, error) {
	v, _, err := call[gen.SourceList](ctx, c, "list the sources", func(ctx context.Context) (*http.Response, error) { return c.api.ListSources(ctx) })
	return v, err
}

// AcceptSource says that a folder is meant to be as it is.
func (c *Client) AcceptSource(ctx context.Context, path string) (gen.Source, error) {
	p := &gen.AcceptSourceParams{Path: path}
	v, _, err := call[gen.Source](ctx, c, "accept source "+path, func(ctx context.Context) (*http.Response, error) { return c.api.AcceptSource(ctx, p) })
	return v, err
}

// Identities lists the identities that have every label.
func (c *Client) Identities(ctx context.Context, labels []string) ([]gen.Identity, error) {
	p := &gen.ListIdentitiesParams{Label: labels}
	v, _, err := call[[]gen.Identity](ctx, c, "list the identities", func(ctx context.Context) (*http.Response, error) { return c.api.ListIdentities(ctx, p) })
	return v, err
}

// Identity asks for one identity.
func (c *Client) Identity(ctx context.Context, id uint32) (gen.Identity, error) {
	v, _, err := call[gen.Identity](ctx, c, "look up an identity", func(ctx context.Context) (*http.Response, error) { return c.api.GetIdentity(ctx, id) })
	return v, err
}

// Policies lists the policies in force.
func (c *Client) Policies(ctx context.Context) (gen.PolicyList, error) {
	v, _, err := call[gen.PolicyList](ctx, c, "list the policies", func(ctx context.Context) (*http.Response, error) { return c.api.ListPolicies(ctx) })
	return v, err
}

// Policy asks for one policy; an empty namespace means a clusterwide kind.
func (c *Client) Policy(ctx context.Context, kind, namespace, name string) (gen.Policy, error) {
	v, _, err := call[gen.Policy](ctx, c, "look up a policy", func(ctx context.Context) (*http.Response, error) {
		return c.api.GetPolicy(ctx, kind, segment(namespace), name)
	})
	return v, err
}

// PolicyRevision asks for the repository's and the realized revision.
func (c *Client) PolicyRevision(ctx context.Context) (gen.PolicyRevision, error) {
	v, _, err := call[gen.PolicyRevision](ctx, c, "ask for the policy revision", func(ctx context.Context) (*http.Response, error) { return c.api.GetPolicyRevision(ctx) })
	return v, err
}

// PutPolicy applies a YAML or JSON document; file is its name in messages.
func (c *Client) PutPolicy(ctx context.Context, file string, document []byte) (gen.PolicyChange, error) {
	p := &gen.PutPolicyParams{File: optional(file)}
	v, _, err := call[gen.PolicyChange](ctx, c, "apply policies", func(ctx context.Context) (*http.Response, error) {
		return c.api.PutPolicyWithBody(ctx, p, "application/yaml", bytes.NewReader(document))
	})
	return v, err
}

// ValidatePolicy checks a document without applying it.
func (c *Client) ValidatePolicy(ctx context.Context, file string, document []byte) (gen.Validation, error) {
	p := &gen.ValidatePolicyParams{File: optional(file)}
	v, _, err := call[gen.Validation](ctx, c, "check policies", func(ctx context.Context) (*http.Response, error) {
		return c.api.ValidatePolicyWithBody(ctx, p, "application/yaml", bytes.NewReader(document))
	})
	return v, err
}

// DeletePolicy takes one policy away; an empty namespace means a clusterwide kind.
func (c *Client) DeletePolicy(ctx context.Context, kind, namespace, name string) (gen.PolicyChange, error) {
	v, _, err := call[gen.PolicyChange](ctx, c, "delete a policy", func(ctx context.Context) (*http.Response, error) {
		return c.api.DeletePolicy(ctx, kind, segment(namespace), name)
	})
	return v, err
}

// Rule asks for the rule behind a number.
func (c *Client) Rule(ctx context.Context, id uint32) (gen.Rule, error) {
	v, _, err := call[gen.Rule](ctx, c, "look up a rule", func(ctx context.Context) (*http.Response, error) { return c.api.GetRule(ctx, id) })
	return v, err
}

// IPs lists the ipcache as the parameters say.
func (c *Client) IPs(ctx context.Context, p gen.ListIPsParams) ([]gen.IPEntry, error) {
	v, _, err := call[[]gen.IPEntry](ctx, c, "list the ipcache", func(ctx context.Context) (*http.Response, error) { return c.api.ListIPs(ctx, &p) })
	return v, err
}

// Why has a connection judged; port and proto may be empty.
func (c *Client) Why(ctx context.Context, from, to, port, proto string) (gen.Explanation, error) {
	p := &gen.GetWhyParams{From: from, To: to, Port: optional(port), Proto: optional(proto)}
	v, _, err := call[gen.Explanation](ctx, c, "explain a connection", func(ctx context.Context) (*http.Response, error) { return c.api.GetWhy(ctx, p) })
	return v, err
}

// IPAM asks for pools and leases.
func (c *Client) IPAM(ctx context.Context) (gen.IPAMStatus, error) {
	v, _, err := call[gen.IPAMStatus](ctx, c, "list the address pools", func(ctx context.Context) (*http.Response, error) { return c.api.GetIPAM(ctx) })
	return v, err
}

// Lease asks for addresses.
func (c *Client) Lease(ctx context.Context, r gen.IPAMRequest) (gen.Lease, error) {
	v, _, err := call[gen.Lease](ctx, c, "lease addresses for "+r.Owner, func(ctx context.Context) (*http.Response, error) { return c.api.PostIPAM(ctx, r) })
	return v, err
}

// Release gives a lease back by one of its addresses. With a lease id it is
// kept when the address belongs to another lease by now.
func (c *Client) Release(ctx context.Context, addr netip.Addr, lease string) error {
	p := &gen.DeleteIPAMParams{Lease: optional(lease)}
	_, _, err := call[struct{}](ctx, c, "release "+addr.String(), func(ctx context.Context) (*http.Response, error) {
		return c.api.DeleteIPAM(ctx, addr.String(), p)
	})
	return err
}

// Monitor calls emit for every event that passes the filter until ctx ends,
// emit fails or the agent goes away. It returns nil when ctx ended, and emit's
// error as it is. started is called once the agent has subscribed; nil is fine.
func (c *Client) Monitor(ctx context.Context, p gen.GetMonitorParams, started func(), emit func(gen.Event) error) error {
	const what = "follow the events"
	ended := func(err error) error {
		if ctx.Err() != nil {
			return nil
		}
		return c.explain(what, err)
	}
	resp, err := c.api.GetMonitor(ctx, &p)
	if err != nil {
		return ended(err)
	}
	defer resp.Body.Close()
	if err := c.check(what, resp); err != nil {
		return err
	}
	if started != nil {
		started()
	}
	lines := json.NewDecoder(resp.Body)
	for {
		var e gen.Event
		err := lines.Decode(&e)
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return v1.Errorf(v1.CodeInternal, "compare the versions with weir version", "%s: read an event: %w", what, err)
		case errors.Is(err, io.EOF) && ctx.Err() == nil:
			return v1.Errorf(v1.CodeUnreachable, "see whether weir-agent was stopped", "%s: the agent on %s ended the stream", what, c.socket)
		case err != nil:
			return ended(err)
		}
		if err := emit(e); err != nil {
			return err
		}
	}
}

func segment(namespace string) string {
	if namespace == "" {
		return clusterwide
	}
	return namespace
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
