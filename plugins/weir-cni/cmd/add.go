package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/types"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
)

// add attaches a container. It prints the result when the endpoint is ready
// and undoes everything otherwise.
func (p *plugin) add(ctx context.Context, r *run) error {
	if r.conf.hasPrevResult() {
		return badConfig("field prevResult: weir-cni must be the first plugin of the list, chaining after another one is not supported")
	}
	args, err := parseArgs(r.args.Args)
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
	a := &addition{run: r, netns: n, pod: args}
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
	steps []undoStep // in the order they were done
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

// attach does the steps.
func (a *addition) attach(ctx context.Context) (*result, error) {
	mtu, err := a.mtu(ctx)
	if err != nil {
		return nil, at(regeneration.StationCNIAdd, err)
	}
	before, err := a.clearWay(ctx)
	if err != nil {
		return nil, at(regeneration.StationCNIAdd, err)
	}
	if before != nil {
		return before, nil
	}
	v := veth{hostName: a.hostName(), podName: a.args.IfName, mtu: mtu}
	a.onFailure("link", func(ctx context.Context) error { return a.links.remove(ctx, a.hostName()) })
	var lease gen.Lease
	var addrs []netip.Addr
	err = atOnce(func() (err error) {
		v, err = a.links.create(ctx, a.netns, v)
		return at(regeneration.StationLinkBuild, err)
	}, func() (err error) {
		lease, addrs, err = a.lease(ctx)
		return at(regeneration.StationIPAMLease, err)
	})
	if err != nil {
		return nil, err
	}
	a.onFailure("endpoint", func(ctx context.Context) error {
		_, err := a.client.DeleteContainer(ctx, a.args.ContainerID, a.args.IfName)
		return err
	})
	var e gen.Endpoint
	err = atOnce(func() error {
		return at(regeneration.StationLinkBuild, a.links.configure(ctx, a.netns, v, addrs))
	}, func() (err error) {
		e, _, err = a.client.PutEndpoint(ctx, a.request(v, lease))
		return at(regeneration.StationCNIReply, err)
	})
	if err != nil {
		return nil, err
	}
	// The agent answers once the endpoint was ready; it may be building a newer policy by now.
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
	conf, err := a.client.Config(ctx)
	return conf.Mtu, err
}

// clearWay deals with what an earlier ADD of this attachment left. An endpoint
// that is ready on an intact link is the answer to the same request again; any
// other remains are removed, an interface of somebody else is an error.
func (a *addition) clearWay(ctx context.Context) (*result, error) {
	v, found, err := a.links.leftover(ctx, a.netns, a.hostName(), a.args.IfName)
	if err != nil {
		if errors.Is(err, errNotOurs) && !found {
			return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "station cni.add: "+err.Error(), "choose another CNI_IFNAME, or remove the interface")
		}
		if !errors.Is(err, errNotOurs) {
			return nil, err
		}
	}
	if !found {
		return nil, nil
	}
	e, err := a.client.Endpoint(ctx, a.attachment())
	switch {
	case v1.CodeOf(err) == v1.CodeNotFound:
	case err != nil:
		return nil, err
	case e.State == gen.EndpointReady && e.Interface.Mac == v.podMAC.String() && e.Interface.HostIndex == v.hostIndex:
		if addrs, err := endpointAddrs(e); err == nil && a.samePod(e) {
			a.log.Info("the attachment exists and is ready", "endpoint", e.ID)
			return newResult(a.args.Netns, v, addrs), nil
		}
	}
	a.log.Warn("removing what an earlier ADD left", "link", v.hostName)
	if _, err := a.client.DeleteContainer(ctx, a.args.ContainerID, a.args.IfName); err != nil {
		return nil, err
	}
	if err := a.links.remove(ctx, v.hostName); err != nil {
		return nil, err
	}
	// The pod's end went with it; anything of that name now is not ours.
	_, _, err = a.links.leftover(ctx, a.netns, a.hostName(), a.args.IfName)
	if errors.Is(err, errNotOurs) {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "station cni.add: "+err.Error(), "choose another CNI_IFNAME, or remove the interface")
	}
	return nil, err
}

// samePod reports whether the endpoint was made for the pod of this request.
func (a *addition) samePod(e gen.Endpoint) bool {
	want := a.pod.podRef()
	return e.Pod.Namespace == want.Namespace && e.Pod.Name == want.Name && (want.UID == "" || e.Pod.UID == "" || e.Pod.UID == want.UID)
}

// lease asks for addresses that return by themselves if the ADD does not finish.
func (a *addition) lease(ctx context.Context) (gen.Lease, []netip.Addr, error) {
	req := gen.IPAMRequest{Owner: a.owner(), Pod: a.pod.podRef(), Pool: a.conf.Pool, Expires: true}
	for _, want := range a.conf.requested {
		req.Requested = append(req.Requested, want.String())
	}
	lease, err := a.client.Lease(ctx, req)
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
func (a *addition) request(v veth, lease gen.Lease) gen.EndpointRequest {
	return gen.EndpointRequest{
		ContainerID: a.args.ContainerID,
		Netns:       a.args.Netns,
		Interface: gen.Interface{HostName: v.hostName, HostIndex: v.hostIndex, ContainerName: v.podName, ContainerIndex: v.podIndex,
			Mac: v.podMAC.String(), HostMac: v.hostMAC.String(), Mtu: v.mtu},
		Addressing:       gen.Addressing{Ipv4: lease.Ipv4, Ipv6: lease.Ipv6},
		LeaseID:          lease.ID,
		Pod:              a.pod.podRef(),
		InfraContainerID: string(a.pod.K8S_POD_INFRA_CONTAINER_ID),
		Labels:           a.conf.Args.CNI.Labels,
		Sync:             true,
		TimeoutSeconds:   max(1, int(a.conf.timeout().Seconds())-1),
	}
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
