package cmd

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regenerator"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/repository"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// resolver is the repository as the regenerator calls it.
type resolver struct {
	repo   *repository.Repository
	source *filesource.Source
}

// Resolve returns the entries of an endpoint's policy. Before that it tells the
// repository who has the endpoint's addresses, so that rules of other pods with
// named ports know this pod before it can be reached.
func (r resolver) Resolve(_ context.Context, row *endpoint.Row) (regenerator.Resolved, error) {
	pods := map[netip.Addr]policy.Pod{}
	for _, a := range row.Addrs() {
		pods[a] = policy.Pod{Identity: row.Identity, NamedPorts: row.NamedPorts}
	}
	r.repo.UpdatePods(pods, nil)
	if lost, is := r.source.Lost(row.Labels); is {
		return regenerator.Resolved{Keep: lost.String(), Revision: r.repo.Revision()}, nil
	}
	answer, err := r.repo.Resolve(subject(row))
	if err != nil {
		return regenerator.Resolved{}, err
	}
	return regenerator.Resolved{Entries: answer.State, Revision: answer.Revision, Version: answer.Revision}, nil
}

func subject(row *endpoint.Row) policy.Subject {
	return policy.Subject{Identity: row.Identity, Labels: row.Labels, NamedPorts: row.NamedPorts, Enforcement: row.Enforcement}
}

// goneAddrs are the addresses of a deleted endpoint that no other one has by now.
func goneAddrs(m *endpointmanager.Manager, row *endpoint.Row) []netip.Addr {
	var gone []netip.Addr
	for _, a := range row.Addrs() {
		if now := m.ByAddr(a); now == nil || now.ID == row.ID {
			gone = append(gone, a)
		}
	}
	return gone
}

// identityUpdates is the repository as ipcache calls it.
type identityUpdates struct {
	*repository.Repository
	late *late
}

// IPCacheChanged lets live flows be judged again.
func (u identityUpdates) IPCacheChanged() {
	if u.late.manager != nil {
		_ = u.late.manager.BumpRevisions() // it fails only for numbers outside the map, which endpoints do not have
	}
}

// addressChanged tells the endpoint of an address which prefixes cover it.
func (l *late) addressChanged(addr netip.Addr, _, prefix identity.NumericIdentity) {
	if l.manager != nil {
		l.manager.AddressChanged(addr, prefix)
	}
}

// policies shows what is in force (pkg/api policySource).
type policies struct {
	*repository.Repository
	manager *endpointmanager.Manager
	ipcache *ipcache.IPCache
	highest atomic.Uint64 // revision that was in force with its prefixes
}

// Realized is the lowest revision that an endpoint's policy map holds. It does
// not grow while ipcache still writes prefixes: until the kernel has them, an
// address is not yet what the policies call it. The endpoints are asked first,
// because they hear of a revision after ipcache has heard of its prefixes.
func (p *policies) Realized() uint64 {
	lowest := p.Revision()
	for _, r := range p.manager.Rows() {
		if r.State.Alive() {
			lowest = min(lowest, r.PolicyRevision)
		}
	}
	if p.ipcache.Synced() {
		for old := p.highest.Load(); old < lowest && !p.highest.CompareAndSwap(old, lowest); old = p.highest.Load() {
		}
	}
	return min(lowest, p.highest.Load())
}

// explainer answers "weir why" (pkg/api explainer).
type explainer struct {
	repo    *repository.Repository
	manager *endpointmanager.Manager
	ipcache *ipcache.IPCache
}

// Explain judges a connection from the policies in force.
func (x explainer) Explain(_ context.Context, q api.Question) (api.Explanation, error) {
	proto, err := types.ParseProto(q.Proto)
	if err != nil {
		return api.Explanation{}, v1.NewError(v1.CodeInvalid, err, "")
	}
	from, _, err := x.end(q.From)
	if err != nil {
		return api.Explanation{}, err
	}
	to, row, err := x.end(q.To)
	if err != nil {
		return api.Explanation{}, err
	}
	port := q.Port
	switch {
	case proto.IsICMP():
		port, err = icmpType(q.PortName, proto)
	case q.PortName != "":
		port, err = portByName(q.PortName, proto, row)
	}
	if err != nil {
		return api.Explanation{}, err
	}
	_, policies := x.repo.Policies()
	e := explain.Explain(x.repo.Index(), explain.Question{From: from.Peer, To: to.Peer, Proto: proto, Port: port, Policies: policies})
	return api.Explanation{Explanation: e, From: from.model, To: to.model}, nil
}

// icmpType reads a type by number or name; without one it is that of a ping.
func icmpType(text string, proto types.Proto) (uint16, error) {
	if text == "" {
		text = "EchoRequest"
	}
	if kind, ok := proto.ICMPType(text); ok {
		return uint16(kind), nil
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, v1.Errorf(v1.CodeInvalid, "give a number from 0 to 255 or a name such as EchoRequest", "%q is no type of %s", text, proto)
	}
	return uint16(n), nil
}

func portByName(name string, proto types.Proto, row *endpoint.Row) (uint16, error) {
	if row == nil {
		return 0, v1.Errorf(v1.CodeInvalid, "give the port's number", "port %q: the destination is no pod of this node and names no ports", name)
	}
	port, ok := row.NamedPorts[policytypes.NamedPort{Name: name, Proto: proto}]
	if !ok {
		return 0, v1.Errorf(v1.CodeInvalid, "see its ports with: weir endpoint get", "port %q: %s gives no %s port that name", name, row.Pod, proto)
	}
	return port, nil
}

// end is one side of a question, found.
type end struct {
	explain.Peer
	model gen.Peer
}

// end finds a side: an endpoint of this node, or an address.
func (x explainer) end(s api.Side) (end, *endpoint.Row, error) {
	var e *endpoint.Endpoint
	switch {
	case s.Name != "":
		for _, c := range x.manager.List() {
			if p := c.Row().Pod; p.Name == s.Name && p.Namespace == s.Namespace {
				e = c
			}
		}
		if e == nil {
			return end{}, nil, v1.Errorf(v1.CodeNotFound, "list them with: weir endpoint list", "no pod %s/%s on this node", s.Namespace, s.Name)
		}
	case s.Endpoint != 0:
		if e = x.manager.ByID(s.Endpoint); e == nil {
			return end{}, nil, v1.Errorf(v1.CodeNotFound, "list them with: weir endpoint list", "no endpoint %d on this node", s.Endpoint)
		}
	default:
		e = x.manager.ByAddr(s.Addr)
	}
	if e == nil {
		return x.address(s.Addr), nil, nil
	}
	row := e.Row()
	if row.Identity == 0 {
		return end{}, nil, v1.Errorf(v1.CodeNotReady, fmt.Sprintf("weir endpoint log %d", row.ID), "endpoint %d has no identity yet", row.ID)
	}
	answer, err := x.repo.Resolve(subject(row))
	if err != nil {
		return end{}, nil, err
	}
	name := row.Pod.String()
	if name == "" {
		name = fmt.Sprintf("endpoint %d", row.ID)
	}
	addr := row.Addrs()[0]
	prefix := x.ipcache.PrefixIdentity(addr)
	return end{
		Peer:  explain.Peer{Name: name, Identity: row.Identity, PrefixIdentity: prefix, Policy: answer.Policy, Audit: row.Audits(), Addr: addr},
		model: gen.Peer{Name: name, Address: addr.String(), Endpoint: row.ID, Identity: uint32(row.Identity), PrefixIdentity: uint32(prefix), Labels: row.Labels.Strings()},
	}, row, nil
}

// address is a side that is no endpoint of this node.
func (x explainer) address(a netip.Addr) end {
	entry := x.ipcache.Lookup(a)
	return end{
		Peer:  explain.Peer{Name: a.String(), Identity: entry.Identity, PrefixIdentity: entry.PrefixIdentity, Addr: a},
		model: gen.Peer{Name: a.String(), Address: a.String(), Identity: uint32(entry.Identity), PrefixIdentity: uint32(entry.PrefixIdentity), Labels: labelsOf(x.repo.Index(), entry.Identity)},
	}
}

func labelsOf(x *policy.Index, id identity.NumericIdentity) []string {
	a, _ := x.Labels(id)
	return a.Strings()
}
