package trial

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/weirnet/weir/pkg/drop"
	pkgendpoint "github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// firstID is the number of the first pod's endpoint.
const firstID = 100

// batch is how many packets are sent before their flows are forgotten.
const batch = 4000

// Judge asks connections of one simulated cluster after the other.
type Judge struct {
	node  *Node
	seats map[[2]netip.Addr]*seat // by the addresses of pods, those that are gone too
	sim   *simulate.Cluster
	sent  int // packets since flows were forgotten
}

// seat is the programs of a pod's addresses.
type seat struct {
	*Endpoint
	group  string
	policy Policy // zero: no pod has the addresses now
}

// NewJudge judges on a Node that nobody else writes to.
func NewJudge(n *Node) *Judge { return &Judge{node: n, seats: map[[2]netip.Addr]*seat{}} }

// Take brings the maps to a cluster, in the agent's order: policies, then what
// addresses stand for, then what is gone.
func (j *Judge) Take(ctx context.Context, sim *simulate.Cluster) error {
	j.sim = sim
	j.node.NextVersion()
	addrs := map[netip.Addr]lxcmap.Info{}
	taken := map[*seat]bool{}
	for _, name := range sim.Names() {
		ends, _ := sim.Ends(name)
		if len(ends) == 0 || !ends[0].Pod {
			continue
		}
		s, err := j.seat(ctx, ends)
		if err != nil {
			return fmt.Errorf("pod %s: %w", name, err)
		}
		taken[s] = true
		layout := s.Layout
		layout.Identity = ends[0].Identity
		for _, e := range ends {
			addrs[e.Addr] = pkgendpoint.KernelInfo(layout, e.Prefix)
		}
	}
	if err := j.node.Places(addrs, Prefixes(sim)); err != nil {
		return err
	}
	for _, s := range j.seats {
		if taken[s] || s.policy == (Policy{}) {
			continue
		}
		if err := j.node.ClearPolicy(s.Endpoint, &s.policy, s.group); err != nil {
			return fmt.Errorf("policy of %s, which is gone: %w", s.group, err)
		}
		s.policy = Policy{}
	}
	return j.forget()
}

// Prefixes is what an agent writes to weir_ipcache of a cluster: what the policies
// name, and the addresses of pods and nodes.
func Prefixes(sim *simulate.Cluster) map[netip.Prefix]ipcachemap.Entry {
	out := map[netip.Prefix]ipcachemap.Entry{}
	for p := range sim.Prefixes {
		id := uint32(sim.OutsideIdentity(p))
		out[p] = ipcachemap.Entry{Identity: id, PrefixIdentity: id}
	}
	for _, name := range sim.Names() {
		ends, _ := sim.Ends(name)
		for _, e := range ends {
			if !e.Labels.HasWorld() {
				out[netip.PrefixFrom(e.Addr, e.Addr.BitLen())] = ipcachemap.Entry{Identity: uint32(e.Identity), PrefixIdentity: uint32(e.Prefix)}
			}
		}
	}
	return out
}

func (j *Judge) forget() error {
	j.sent = 0
	return j.node.ForgetFlows()
}

// seat gives a pod its programs, loaded when its addresses are first seen, and
// its policy.
func (j *Judge) seat(ctx context.Context, ends []simulate.End) (*seat, error) {
	key := addrsOf(ends)
	s := j.seats[key]
	if s == nil {
		i := len(j.seats)
		e, err := j.node.Load(ctx, plan.Layout{
			ID: firstID + uint16(i), Identity: ends[0].Identity, IfIndex: 1000 + i, IPv4: key[0], IPv6: key[1],
			MAC: wtypes.MAC{2, 0, 0, 1, byte(i >> 8), byte(i)}, NodeMAC: wtypes.MAC{2, 0, 0, 2, byte(i >> 8), byte(i)},
		})
		if err != nil {
			return nil, err
		}
		s = &seat{Endpoint: e, group: fmt.Sprint(key)}
		j.seats[key] = s
	}
	state, err := j.sim.MapState(ends[0])
	if err != nil {
		return nil, err
	}
	return s, j.node.SetPolicy(s.Endpoint, &s.policy, s.group, state, true)
}

// addrsOf are the first addresses of the families, IPv4 first.
func addrsOf(ends []simulate.End) (out [2]netip.Addr) {
	for _, e := range ends {
		family := 1
		if e.Addr.Is4() {
			family = 0
		}
		if !out[family].IsValid() {
			out[family] = e.Addr
		}
	}
	return out
}

// Ask sends the first packet of a connection through the program of each end
// that is a pod, and says what the kernel made of it.
func (j *Judge) Ask(from, to simulate.End, proto wtypes.Proto, port uint16) (egress, ingress simulate.Side, err error) {
	sides := map[types.Direction]*simulate.Side{
		types.Egress: {Judged: from.Pod, Verdict: types.Allow}, types.Ingress: {Judged: to.Pod, Verdict: types.Allow},
	}
	for _, at := range []simulate.End{from, to} {
		if !at.Pod {
			continue
		}
		dropped, err := j.send(at, from, to, proto, port, sides)
		denied := sides[types.Egress].Verdict == types.Deny || sides[types.Ingress].Verdict == types.Deny
		if err == nil && denied != dropped {
			err = fmt.Errorf("told is denied: %v, but the packet was dropped: %v", denied, dropped)
		}
		if err != nil {
			return simulate.Side{}, simulate.Side{}, fmt.Errorf("%s -> %s %d/%s, seen at %s: %w", from.Name, to.Name, port, proto, at.Name, err)
		}
	}
	return *sides[types.Egress], *sides[types.Ingress], nil
}

// send runs the program of one end and notes what it tells.
func (j *Judge) send(at, from, to simulate.End, proto wtypes.Proto, port uint16, sides map[types.Direction]*simulate.Side) (dropped bool, err error) {
	ends, _ := j.sim.Ends(at.Name)
	s := j.seats[addrsOf(ends)]
	if j.sent++; j.sent > batch {
		if err := j.forget(); err != nil {
			return false, err
		}
	}
	program, mac := s.To, wtypes.MAC{2, 0, 0, 0, 8, 8}
	if at.Addr == from.Addr {
		program, mac = s.From, s.Layout.MAC
	}
	packet := Packet{SrcMAC: mac, Proto: proto, Flags: TCPSYN,
		Src: netip.AddrPortFrom(from.Addr, 1024+uint16(j.sent)), Dst: netip.AddrPortFrom(to.Addr, port)}
	act, err := j.node.Run(program, packet.Frame(), from.Addr)
	if err != nil {
		return false, err
	}
	events, err := j.node.Events()
	if err != nil {
		return false, err
	}
	told := map[types.Direction]bool{}
	for _, e := range events {
		verdict := types.Allow
		switch {
		case e.Reason.IsPolicy():
			verdict = types.Deny
		case e.Reason != drop.Forwarded:
			return false, fmt.Errorf("dropped for another reason than policy: %s", e.Reason)
		}
		ref, known := j.sim.Rule(e.Rule)
		if !known {
			return false, fmt.Errorf("%s by rule %d, which there is not", e.Direction, e.Rule)
		}
		told[e.Direction] = true
		side := sides[e.Direction]
		if side.Rule.Key() != ref.Key() && side.Rule.Key() != (types.RuleRef{}).Key() {
			return false, fmt.Errorf("%s by %s here and by %s at the other end", e.Direction, ref, side.Rule)
		}
		side.Verdict, side.Rule = verdict, ref
	}
	for dir, side := range sides {
		if side.Judged && !told[dir] {
			return false, fmt.Errorf("the program told nothing of %s", dir)
		}
	}
	return act == ActShot, nil
}
