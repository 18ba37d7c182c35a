package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/endpoint"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
	"github.com/weirnet/weir/pkg/endpoint/creator"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// endpoints shows and changes the endpoints for the API.
type endpoints struct {
	manager *endpointmanager.Manager
	creator *creator.Creator
	leases  *leases
	words   *lxcmap.Config
	counted *counters
	under   creations
}

// Endpoints lists all endpoints (endpoint/api reader).
func (a *endpoints) Endpoints() []gen.Endpoint {
	var out []gen.Endpoint
	for _, e := range a.manager.List() {
		out = append(out, endpointModel(e))
	}
	return out
}

// Endpoint finds one endpoint.
func (a *endpoints) Endpoint(ref id.Ref) (gen.Endpoint, bool) {
	e, err := a.manager.Lookup(ref)
	if err != nil {
		return gen.Endpoint{}, false
	}
	return endpointModel(e), true
}

func endpointModel(e *endpoint.Endpoint) gen.Endpoint {
	r := e.Row()
	passed, _ := e.Progress()
	out := gen.Endpoint{
		ID: r.ID, State: gen.EndpointState(r.State), StateReason: r.Reason, ContainerID: r.ContainerID, Network: r.Network, Netns: r.NetNS,
		Pod:      gen.PodRef{Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: r.Pod.UID},
		Identity: gen.Identity{ID: uint32(r.Identity), Labels: r.Labels.Strings()},
		Labels:   r.Labels.With(r.InfoLabels...).Strings(),
		Interface: gen.Interface{
			HostName: r.HostInterface, HostIndex: r.IfIndex, ContainerName: r.ContainerInterface, Mac: r.MAC.String(), HostMac: r.NodeMAC.String(),
		},
		Policy: gen.EndpointPolicy{
			Revision: r.PolicyRevision, NextRevision: r.NextPolicyRevision, Slot: r.Slot, Entries: r.PolicyEntries,
			Ingress: enforcement(r, policytypes.Ingress), Egress: enforcement(r, policytypes.Egress),
			Degraded: r.Degraded != "", DegradedReason: r.Degraded, Audit: r.Audits(),
			Enforcement: gen.EndpointEnforcement(r.EnforcementInForce().String()),
		},
		Created: r.Created, LastStation: string(passed),
	}
	if r.IPv4.IsValid() {
		out.Addressing.Ipv4 = r.IPv4.String()
	}
	if r.IPv6.IsValid() {
		out.Addressing.Ipv6 = r.IPv6.String()
	}
	for name, port := range r.NamedPorts {
		out.NamedPorts = append(out.NamedPorts, gen.NamedPort{Name: name.Name, Proto: name.Proto.String(), Port: port})
	}
	return out
}

// enforcement says whether the default entry of a direction denies, and whether
// audit mode lets that through; without a policy in force everything is denied.
func enforcement(r *endpoint.Row, dir policytypes.Direction) gen.Enforcement {
	if e, ok := r.RealizedPolicy[policytypes.Key{Direction: dir}]; ok && e.Precedence == policytypes.DefaultPrecedence && e.Verdict == policytypes.Allow {
		return gen.Open
	}
	if r.Audits() {
		return gen.Audited
	}
	return gen.Enforced
}

// Log is an endpoint's status log (endpoint/api historian).
func (a *endpoints) Log(ref id.Ref) ([]gen.LogEntry, bool) {
	e, err := a.manager.Lookup(ref)
	if err != nil {
		return nil, false
	}
	var out []gen.LogEntry
	for _, s := range e.StatusLog() {
		out = append(out, gen.LogEntry{Time: s.Time, Code: gen.LogEntryCode(s.Severity), State: string(s.State), Message: s.Message})
	}
	return out, true
}

// Counters tells what the endpoint's rules let through.
func (a *endpoints) Counters(ref id.Ref) ([]gen.RuleCounter, bool, error) {
	e, err := a.manager.Lookup(ref)
	if err != nil {
		return nil, false, nil
	}
	out, err := a.counted.of(e.ID)
	return out, true, err
}

// Timeline lists the stations that an endpoint passed.
func (a *endpoints) Timeline(ref id.Ref) ([]gen.Station, bool) {
	e, err := a.manager.Lookup(ref)
	if err != nil {
		return nil, false
	}
	var out []gen.Station
	for _, p := range e.Timeline() {
		s := gen.Station{Name: string(p.Station), Started: p.Start, DurationMicros: p.Duration.Microseconds(), Error: p.Error}
		if p.Done {
			s.Finished = p.Start.Add(p.Duration)
		}
		out = append(out, s)
	}
	if sent, err := a.words.FirstPacket(e.ID); err == nil && sent > 0 {
		at := time.Now().Add(sent - bpf.BootTime())
		out = append(out, gen.Station{Name: string(regeneration.StationPacket), Started: at, Finished: at})
	}
	return out, true
}

// Health judges an endpoint.
func (a *endpoints) Health(_ context.Context, ref id.Ref) (gen.EndpointHealth, bool) {
	e, err := a.manager.Lookup(ref)
	if err != nil {
		return gen.EndpointHealth{}, false
	}
	h := e.Row().Health()
	out := gen.EndpointHealth{Overall: gen.StateOk, Bpf: healthState(h.Programs), Policy: healthState(h.Policy), Connected: h.Connected, Message: h.Reason}
	if !h.OK {
		out.Overall, out.Next = gen.StateStarting, "weir endpoint log "+ref.String()
		if h.Policy == "degraded" {
			out.Overall = gen.StateFailing
		}
	}
	return out, true
}

func healthState(word string) gen.State {
	switch word {
	case "ok":
		return gen.StateOk
	case "degraded":
		return gen.StateFailing
	}
	return gen.StateStarting
}

// Create makes the endpoint of a CNI attachment (endpoint/api writer).
func (a *endpoints) Create(ctx context.Context, r endpointapi.Request) (gen.Endpoint, bool, error) {
	peer, err := checkLink(r.HostIfName, r.HostIfIndex)
	if err != nil {
		return gen.Endpoint{}, false, err
	}
	defer a.under.begin(r.Key())()
	before := a.manager.ByAttachment(r.ContainerID, r.IfName) != nil
	lease, made, err := a.leases.claim(r)
	if err != nil {
		return gen.Endpoint{}, false, err
	}
	e, created, err := a.creator.Create(ctx, creator.Request{
		ContainerID: r.ContainerID, ContainerInterface: r.IfName, Network: r.Network, NetNS: r.Netns, HostInterface: r.HostIfName, HostIfIndex: r.HostIfIndex, PeerIndex: peer,
		MAC: r.MAC, HostMAC: r.HostMAC, IPv4: r.IPv4, IPv6: r.IPv6, PodNamespace: r.PodNamespace, PodName: r.PodName, PodUID: r.PodUID,
		Standalone: r.Standalone, Labels: r.Labels, Wait: r.Sync,
	})
	if err != nil {
		err = createError(err)
		if (made || before) && a.manager.ByAttachment(r.ContainerID, r.IfName) == nil {
			_, failed := a.leases.ReleaseOwner(r.Key())
			err = errors.Join(err, failed)
		}
		return gen.Endpoint{}, false, err
	}
	if err := a.leases.confirm(lease); err != nil {
		if created {
			err = errors.Join(err, a.manager.Delete(context.WithoutCancel(ctx), e, "its lease could not be kept"))
		}
		return gen.Endpoint{}, false, err
	}
	e.Enter(regeneration.StationCNIReply, "")(nil)
	return endpointModel(e), created, nil
}

// checkLink refuses what is not the node's end of a pair under that name:
// programs and the deletion of an endpoint would cut off an interface of the node.
// It returns the index of the other end.
func checkLink(name string, index int) (peer int, err error) {
	h, err := link.ByIndex(index)
	if err == nil && (h.Name != name || h.PeerIndex == 0) {
		err = fmt.Errorf("link %d is %s, with its other end at %d", index, h.Name, h.PeerIndex)
	}
	if err != nil {
		return 0, v1.Errorf(v1.CodeInvalid, "give name and index of the host side of the pod's veth", "field interface: %s is no way to a pod: %w", name, err)
	}
	return h.PeerIndex, nil
}

// createError tells errors that the caller can mend from others.
func createError(err error) error {
	var invalid *creator.InvalidError
	var duplicate *endpointmanager.DuplicateError
	switch {
	case errors.As(err, &invalid):
		return v1.NewError(v1.CodeInvalid, err, "correct the field "+invalid.Field)
	case errors.As(err, &duplicate):
		return v1.NewError(v1.CodeConflict, err, "")
	case errors.Is(err, id.ErrExhausted):
		return v1.NewError(v1.CodeExhausted, err, "delete endpoints that are no longer used")
	case errors.Is(err, endpoint.ErrNotAlive):
		return v1.NewError(v1.CodeConflict, err, "send the request again")
	case errors.Is(err, context.DeadlineExceeded):
		return v1.NewError(v1.CodeTimeout, err, "weir status tells what the agent waits for")
	}
	return err
}

// Change puts the settings into force that are given.
func (a *endpoints) Change(ctx context.Context, ref id.Ref, s gen.EndpointSettings) (gen.Endpoint, bool, error) {
	mode, err := policytypes.ParseEnforcement(cmp.Or(string(s.Enforcement), policytypes.EnforcementNode.String()))
	if err != nil {
		return gen.Endpoint{}, true, v1.Errorf(v1.CodeInvalid, "mend the field and send the request again", "field enforcement: %w", err)
	}
	e, err := a.manager.Lookup(ref)
	switch {
	case errors.Is(err, endpointmanager.ErrNotFound):
		return gen.Endpoint{}, false, nil
	case err == nil:
		err = e.Change(ctx, func(now *endpoint.Settings) {
			if s.Audit != nil {
				now.Audit = *s.Audit
			}
			if s.Enforcement != "" {
				now.Enforcement = mode
			}
		})
	}
	if err == nil && s.Network != "" {
		err = a.manager.NoteNetwork(e, s.Network)
	}
	if err != nil {
		return gen.Endpoint{}, true, createError(err)
	}
	return endpointModel(e), true, nil
}

// Delete takes one endpoint down.
func (a *endpoints) Delete(ctx context.Context, ref id.Ref) (bool, []error) {
	e, err := a.manager.Lookup(ref)
	if errors.Is(err, endpointmanager.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, []error{err}
	}
	return true, a.delete(ctx, e)
}

func (a *endpoints) delete(ctx context.Context, e *endpoint.Endpoint) (problems []error) {
	if err := a.manager.Delete(ctx, e, "deleted through the API"); err != nil {
		return append(problems, err) // its addresses stay leased while the kernel may know them
	}
	if _, err := a.leases.ReleaseOwner(e.Row().Attachment()); err != nil {
		problems = append(problems, err)
	}
	return problems
}

// DeleteContainer takes the endpoints of a container down that are meant, and gives
// back the leases of an attachment that never became an endpoint.
func (a *endpoints) DeleteContainer(ctx context.Context, containerID, ifName string, only endpointapi.Only) (int, []error) {
	deleted := 0
	var problems []error
	for _, e := range a.manager.ByContainer(containerID) {
		if r := e.Row(); (ifName == "" || r.ContainerInterface == ifName) && only.Means(r.IfIndex, r.Created) {
			problems = append(problems, a.delete(ctx, e)...)
			deleted++
		}
	}
	for _, l := range a.leases.IPAM.Leases() {
		if only.HostIndex != 0 {
			break
		}
		container, iface, _ := strings.Cut(l.Owner, ":")
		if container != containerID || ifName != "" && iface != ifName || a.manager.ByAttachment(container, iface) != nil {
			continue
		}
		if _, err := a.leases.ReleaseOwner(l.Owner); err != nil {
			problems = append(problems, err)
		}
	}
	return deleted, problems
}

// counts summarises the endpoints for the status.
func (a *endpoints) counts() gen.EndpointCounts {
	var c gen.EndpointCounts
	for _, r := range a.manager.Rows() {
		c.Total++
		if r.State == regeneration.StateReady {
			c.Ready++
		}
		if r.Degraded != "" {
			c.Degraded++
		}
	}
	return c
}
