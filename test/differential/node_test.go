package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/cli/trial"
	pkgendpoint "github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/monitor"
	wtypes "github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/dataplane"
)

// endpoints is how many pairs of programs are loaded; a world uses some of them.
const endpoints = 24

// endpoint is a pair of loaded entry programs, for a pod of any world.
type endpoint = trial.Endpoint

// node is a data plane that worlds are written to.
type node struct {
	*dataplane.Node
	pods []*endpoint
}

// openNode makes the data plane and loads the endpoints, with addresses drawn
// from the seed.
func openNode(t *testing.T, fs string, seed uint64) *node {
	t.Helper()
	n := &node{Node: dataplane.Open(t, fs)}
	g := gen{rand.New(rand.NewPCG(seed, 0))}
	taken := map[netip.Addr]bool{}
	fresh := func(draw func() netip.Addr) netip.Addr {
		for {
			if a := draw(); !taken[a] {
				taken[a] = true
				return a
			}
		}
	}
	for i := range endpoints {
		n.pods = append(n.pods, n.Load(plan.Layout{
			ID: uint16(100 + 7*i), Identity: identity.ReservedInit, IfIndex: 1000 + i, MAC: wtypes.MAC{2, 0, 0, 0, 1, byte(i)}, NodeMAC: wtypes.MAC{2, 0, 0, 0, 2, byte(i)},
			IPv4: fresh(g.podAddr4), IPv6: fresh(g.podAddr6),
		}))
	}
	return n
}

// apply writes the world as it is resolved, in the agent's order: policies,
// then what addresses stand for, then what went. Pods that changed get a new
// revision.
func (n *node) apply(w *world, changed func(*pod) bool) error {
	n.NextVersion()
	for _, p := range w.pods {
		if p.at == nil {
			continue
		}
		if err := n.SetPolicy(p.at, &p.kernel, p.group(), p.state, changed(p)); err != nil {
			return fmt.Errorf("policy of %s: %w", p.Name, err)
		}
	}
	addrs := map[netip.Addr]lxcmap.Info{}
	prefixes := map[netip.Prefix]ipcachemap.Entry{}
	for p := range w.prefixes {
		id := uint32(w.numbers.Of(outsideLabels(p)))
		prefixes[p] = ipcachemap.Entry{Identity: id, PrefixIdentity: id}
	}
	for _, e := range w.ends {
		if e.local() {
			layout := e.pod.at.Layout
			layout.Identity = e.id
			addrs[e.addr] = pkgendpoint.KernelInfo(layout, e.where)
		}
		if e.pod != nil || e.node != nil {
			prefixes[netip.PrefixFrom(e.addr, e.addr.BitLen())] = ipcachemap.Entry{Identity: uint32(e.id), PrefixIdentity: uint32(e.where)}
		}
	}
	return n.Places(addrs, prefixes)
}

// retire takes the world's pods off the node and forgets all flows.
func (n *node) retire(w *world) error {
	for _, p := range w.pods {
		if p.at == nil {
			continue
		}
		if err := n.ClearPolicy(p.at, &p.kernel, p.group()); err != nil {
			return err
		}
	}
	return n.ForgetFlows()
}

// run gives a frame with a source address to a program and returns its verdict and events.
func (n *node) run(p *ebpf.Program, frame []byte, src netip.Addr) (act uint32, events []monitor.Event, err error) {
	if act, err = n.Run(p, frame, src); err != nil {
		return 0, nil, err
	}
	events, err = n.Events()
	return act, events, err
}

// flows lists what conntrack holds.
func (n *node) flows() (map[flowKey]ctmap.Flow, error) {
	flows, err := n.Flows()
	all := map[flowKey]ctmap.Flow{}
	for _, f := range flows {
		all[flowKey{f.Initiator, f.Responder, wtypes.Proto(f.Protocol)}] = f
	}
	return all, err
}
