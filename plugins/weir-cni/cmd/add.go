package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/types"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// add attaches a container. It prints the result when the endpoint is ready
// and undoes everything otherwise.
func (p *plugin) add(ctx context.Context, r *run) error {
	if r.conf.hasPrevResult() {
		return badConfig("field prevResult: weir-cni must be the first plugin of the list, chaining after another one is not supported")
	}
	args, err := parseArgs(r.args.Args)
	if err == nil {
		err = r.conf.wish(args)
	}
	if err != nil {
		return err
	}
	// skel looks at this only after the work is done.
	if !isTrue(r.args.NetnsOverride) {
		if same, _ := ns.CheckNetNS(r.args.Netns); same {
			return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS "+r.args.Netns+" is the node's own network namespace", "give the container's namespace")
		}
	}
	n, err := openNetns(r.args.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, at(regeneration.StationCNIAdd, err).Error(), "see whether the container's sandbox still exists")
	}
	defer n.Close()
	a := &addition{run: r, netns: n, pod: args, agent: r.client.Patient(r.conf.RunDir, r.conf.wait())}
	res, err := a.attach(ctx)
	if err != nil {
		a.undo(context.WithoutCancel(ctx))
		return err
	}
	return r.print(res)
}

// addition is an ADD under way, with what must be taken back if it fails.
type addition struct {
	*run
	netns *podNetns
	pod   *podArgs
	agent *client.Client // waits for an agent that is starting; one call at a time
	steps []undoStep     // in the order they were done
}

// undoStep takes one thing back. It succeeds when there is nothing.
type undoStep struct {
	what string
	do   func(context.Context) error
}

func (a *addition) onFailure(what string, do func(context.Context) error) {
	a.steps = append(a.steps, undoStep{what, do})
}

// undo takes the steps back, last first. What fails is logged: DEL, which the
// runtime calls after a failed ADD, tries again.
func (a *addition) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	for i := len(a.steps) - 1; i >= 0; i-- {
		if err := a.steps[i].do(ctx); err != nil {
			a.log.Warn("could not take back a failed ADD; DEL tries again", "what", a.steps[i].what, "error", err)
		}
	}
}

// attach does the steps. What an earlier ADD of this attachment left alive is used
// again, or left alone by a failure; undo takes back only what was made here.
func (a *addition) attach(ctx context.Context) (*result, error) {
	mtu, err := a.mtu(ctx)
	if err != nil {
		return nil, at(regeneration.StationCNIAdd, err)
	}
	v, addrs, again, err := a.earlier(ctx)
	if err != nil {
		return nil, at(regeneration.StationCNIAdd, err)
	}
	if again {
		a.log.Info("the attachment exists", "link", v.hostName)
		return a.finish(ctx, v, addrs, "")
	}
	v = veth{hostName: a.hostName(), podName: a.args.IfName, podMAC: a.conf.mac, mtu: mtu, mark: a.mark()}
	var lease gen.Lease
	made := false
	err = atOnce(func() (err error) {
		v, err = a.links.create(ctx, a.netns, v)
		made = err == nil
		return at(regeneration.StationLinkBuild, err)
	}, func() (err error) {
		lease, addrs, err = a.lease(ctx)
		return at(regeneration.StationIPAMLease, err)
	})
	if made {
		a.onFailure("link", func(ctx context.Context) error { return a.links.remove(ctx, v.hostName, v.hostIndex) })
	}
	if err != nil {
		return nil, err
	}
	a.onFailure("endpoint", func(ctx context.Context) error {
		_, err := a.client.DeleteAttachment(ctx, a.args.ContainerID, a.args.IfName, v.hostIndex)
		return err
	})
	return a.finish(ctx, v, addrs, lease.ID)
}

// finish configures the pod's end, and returns when the agent says that the endpoint
// of this very link is ready.
func (a *addition) finish(ctx context.Context, v veth, addrs []netip.Addr, lease string) (*result, error) {
	var e gen.Endpoint
	err := atOnce(func() error {
		return at(regeneration.StationLinkBuild, a.links.configure(ctx, a.netns, v, addrs))
	}, func() (err error) {
		e, _, err = a.agent.PutEndpoint(ctx, a.request(ctx, v, addrs, lease))
		return at(regeneration.StationCNIReply, err)
	})
	if err != nil {
		return nil, err
	}
	switch e.State { // ready once is enough: it may be built again already
	case gen.EndpointDisconnecting, gen.EndpointDisconnected, gen.EndpointInvalid:
		return nil, at(regeneration.StationCNIReply, v1.Errorf(v1.CodeNotReady, "weir endpoint log "+fmt.Sprint(e.ID)+" tells why",
			"endpoint %d is %s, not ready", e.ID, e.State))
	}
	if have, err := endpointAddrs(e); err != nil || e.Interface.HostIndex != v.hostIndex || !slices.Equal(have, addrs) {
		return nil, at(regeneration.StationCNIReply, v1.Errorf(v1.CodeConflict, "delete the pod; weir endpoint get "+fmt.Sprint(e.ID)+" shows what the agent has",
			"endpoint %d is on link %d with %v, the pod on link %d with %v", e.ID, e.Interface.HostIndex, have, v.hostIndex, addrs))
	}
	a.log.Debug("endpoint ready", "endpoint", e.ID, "identity", e.Identity.ID)
	return newResult(a.args.Netns, v, addrs), nil
}

// atOnce does two things that do not need each other, the node's work and the
// agent's. Neither is given up when the other one fails: undo must know what the
// agent made.
func atOnce(node, agent func() error) error {
	done := make(chan error, 1)
	go func() { done <- node() }()
	asked := agent()
	if err := <-done; err != nil {
		return err
	}
	return asked
}

// mtu is that of the network configuration, in bytes; one that a person wrote
// without it costs a question to the agent.
func (a *addition) mtu(ctx context.Context) (int, error) {
	if a.conf.MTU != 0 {
		return a.conf.MTU, nil
	}
	conf, err := a.agent.Config(ctx)
	return conf.Mtu, err
}

// earlier looks at what an earlier ADD of this attachment left. again says that its
// pair is whole in this namespace and has an endpoint: the same request comes again.
// An interface that lives, in another namespace or under another name, is an error
// and stays as it is; so is one of somebody else. A pair that never got an endpoint is
// removed. What a pair left that is gone is replaced by the agent.
func (a *addition) earlier(ctx context.Context) (v veth, addrs []netip.Addr, again bool, err error) {
	v, found, err := a.links.leftover(ctx, a.netns, a.hostName(), a.args.IfName)
	if err != nil && !errors.Is(err, errNotOurs) {
		return v, nil, false, err
	}
	whole := found && err == nil && !v.podMAC.IsZero()
	if found {
		e, failed := a.agent.Endpoint(ctx, a.attachment())
		if failed != nil && v1.CodeOf(failed) != v1.CodeNotFound {
			return v, nil, false, failed
		}
		lives := failed == nil && e.Interface.HostIndex == v.hostIndex
		switch {
		case lives && !whole:
			return v, nil, false, v1.Errorf(v1.CodeConflict, "call DEL for the container first",
				"the interface %s of container %s lives, and is not in %s (endpoint %d, attached in %s); nothing was changed", a.args.IfName, a.args.ContainerID, a.args.Netns, e.ID, e.Netns)
		case lives:
			addrs, err = a.sameWishes(v, e)
			return v, addrs, true, err
		case err == nil:
			a.log.Warn("removing what an earlier ADD left", "link", v.hostName)
			return veth{}, nil, false, a.links.remove(ctx, v.hostName, v.hostIndex)
		}
	}
	if err != nil {
		err = types.NewError(types.ErrInvalidEnvironmentVariables, "station cni.add: "+err.Error(), "choose another CNI_IFNAME, or remove the interface")
	}
	return v, nil, false, err
}

// sameWishes returns the addresses of an endpoint that exists, if they are what this
// request asks for.
func (a *addition) sameWishes(v veth, e gen.Endpoint) ([]netip.Addr, error) {
	addrs, err := endpointAddrs(e)
	if err != nil {
		return nil, err
	}
	const next = "call DEL for the container first"
	for _, want := range a.conf.requested {
		if !slices.Contains(addrs, want) {
			return nil, v1.Errorf(v1.CodeConflict, next, "container %s has the addresses %v and not %s", a.args.ContainerID, addrs, want)
		}
	}
	if !a.conf.mac.IsZero() && a.conf.mac != v.podMAC {
		return nil, v1.Errorf(v1.CodeConflict, next, "the interface of container %s has the MAC address %s and not %s", a.args.ContainerID, v.podMAC, a.conf.mac)
	}
	return addrs, nil
}

// mark is what the link is to say of itself.
func (a *addition) mark() link.Mark {
	pod := a.pod.podRef()
	return link.Mark{Container: a.args.ContainerID, Interface: a.args.IfName, Network: a.conf.Name, Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID}
}

// lease asks for addresses that return by themselves if the ADD does not finish.
func (a *addition) lease(ctx context.Context) (gen.Lease, []netip.Addr, error) {
	req := gen.IPAMRequest{Owner: a.owner(), Pod: a.pod.podRef(), Pool: a.conf.Pool, Expires: true}
	for _, want := range a.conf.requested {
		req.Requested = append(req.Requested, want.String())
	}
	lease, err := a.agent.Lease(ctx, req)
	if err != nil {
		return lease, nil, err
	}
	addrs, err := parseAddrs(lease.Ipv4, lease.Ipv6)
	if err != nil {
		return lease, nil, fmt.Errorf("the agent's lease %s: %w", lease.ID, err)
	}
	a.onFailure("lease", func(ctx context.Context) error { return a.client.Release(ctx, addrs[0], lease.ID) })
	return lease, addrs, nil
}

// request describes the attachment to the agent.
func (a *addition) request(ctx context.Context, v veth, addrs []netip.Addr, lease string) gen.EndpointRequest {
	left := a.conf.timeout()
	if end, ok := ctx.Deadline(); ok {
		left = time.Until(end)
	}
	r := gen.EndpointRequest{
		ContainerID: a.args.ContainerID,
		Network:     a.conf.Name,
		Netns:       a.args.Netns,
		Interface: gen.Interface{HostName: v.hostName, HostIndex: v.hostIndex, ContainerName: v.podName, ContainerIndex: v.podIndex,
			Mac: v.podMAC.String(), HostMac: v.hostMAC.String(), Mtu: v.mtu},
		LeaseID:          lease,
		Pod:              a.pod.podRef(),
		InfraContainerID: string(a.pod.K8S_POD_INFRA_CONTAINER_ID),
		Labels:           a.conf.Args.CNI.Labels,
		Sync:             true,
		TimeoutSeconds:   max(1, int(left.Seconds())-1),
	}
	for _, addr := range addrs {
		if addr.Is4() {
			r.Addressing.Ipv4 = addr.String()
		} else {
			r.Addressing.Ipv6 = addr.String()
		}
	}
	return r
}

func endpointAddrs(e gen.Endpoint) ([]netip.Addr, error) {
	return parseAddrs(e.Addressing.Ipv4, e.Addressing.Ipv6)
}

// parseAddrs reads the addresses that are not empty; none is an error.
func parseAddrs(texts ...string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, t := range texts {
		if t == "" {
			continue
		}
		a, err := netip.ParseAddr(t)
		if err != nil {
			return nil, err
		}
		out = append(out, a.Unmap())
	}
	if len(out) == 0 {
		return nil, errors.New("there is no address")
	}
	return out, nil
}
