package cases

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirnet/weir/cli/trial"
	"github.com/weirnet/weir/pkg/drop"
	pkgendpoint "github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/monitor"
	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/testutils"
	wtypes "github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/dataplane"
)

// batch is how many packets are sent before their events are read: two events
// each fit the ring.
const batch = 1500

// Every cell of every case by the programs in the kernel, on maps that are
// filled from the map states: by the program of the source and by that of the
// destination, each on a flow of its own. The letters must be those of the
// tables, the rules those of the oracle.
func TestEveryCellByTheKernel(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("clang-19"))
	set := load(t)
	k := &kernel{Node: dataplane.Open(t, env.BPFRoot), at: map[netip.Addr]*place{}}
	prepared := make(chan *script, 4)
	go func() { // what must come out is found while the kernel runs what came before
		defer close(prepared)
		for _, c := range set.Cases {
			s := write(set.Worlds[c.World], c)
			select {
			case prepared <- s:
			case <-t.Context().Done():
				return
			}
		}
	}()
	played, cells := 0, 0
	var failed []string
	for s := range prepared {
		played++
		err := s.err
		for i := 0; err == nil && i < len(s.steps); i++ {
			cells += len(s.steps[i].asks)
			if err = k.play(s.steps[i]); err != nil {
				err = fmt.Errorf("step %d: %w", i, err)
			}
		}
		if err != nil {
			if failed = append(failed, s.ID); len(failed) <= 10 {
				t.Errorf("%s (%s): %v", s.ID, s.Title, err)
			}
		}
	}
	t.Logf("%d cases, %d cells, %d packets, %d verdicts with rules", played, cells, k.packets, k.verdicts)
	if len(failed) > 0 {
		t.Errorf("%d cases fail: %s", len(failed), strings.Join(failed, " "))
	}
	if played != 873 || cells != 918444 {
		t.Errorf("%d cases with %d cells were played, want 873 with 918444", played, cells)
	}
}

// script is a case with all that must come out.
type script struct {
	casefile.Case
	steps []*scene
	err   error
}

// scene is a step of a script.
type scene struct {
	sim      *simulate.Cluster
	ends     []simulate.End
	prefixes map[netip.Prefix]ipcachemap.Entry
	asks     []ask
}

// ask is a cell with what the oracle says.
type ask struct {
	casefile.Cell
	from, to simulate.End
	want     verdict
}

func write(data *casefile.WorldData, c casefile.Case) *script {
	s := &script{Case: c}
	w := casefile.NewWorld(data, "default")
	numbers := &simulate.Numbers{}
	for i, step := range c.Steps {
		one, err := writeStep(w, step, numbers)
		if err != nil {
			s.err = fmt.Errorf("step %d: %w", i, err)
			return s
		}
		s.steps = append(s.steps, one)
	}
	return s
}

func writeStep(w *casefile.World, step casefile.Step, numbers *simulate.Numbers) (*scene, error) {
	if err := w.Run(step); err != nil {
		return nil, err
	}
	sim, err := w.Simulate(numbers)
	if err != nil {
		return nil, err
	}
	s := &scene{sim: sim, prefixes: trial.Prefixes(sim)}
	byName := map[string]simulate.End{}
	for _, name := range sim.Names() {
		ends, _ := sim.Ends(name)
		byName[name] = ends[0]
		s.ends = append(s.ends, ends[0])
	}
	slow := newOracle(w, sim)
	for _, cell := range step.Cells(w.Probes) {
		a := ask{Cell: cell, from: byName[cell.From], to: byName[cell.To]}
		if a.want, err = slow.ask(a.from, a.to, cell); err != nil {
			return nil, fmt.Errorf("%s: %w", cell, err)
		}
		s.asks = append(s.asks, a)
	}
	return s, nil
}

// kernel is the data plane with the pods of a step.
type kernel struct {
	*dataplane.Node
	at                map[netip.Addr]*place
	packets, verdicts int
}

// place is an address that a pod has or had.
type place struct {
	*trial.Endpoint
	policy trial.Policy
}

// shot is a packet of a cell.
type shot struct {
	*ask
	end   simulate.End // whose program sees it
	enter bool         // it leaves that pod; else it comes to it
	act   uint32
	told  []monitor.Event
}

// play writes a step's maps and asks every cell. No later step rides a flow of
// this one, whatever becomes of it.
func (k *kernel) play(s *scene) (err error) {
	defer func() {
		_, late := k.Events()
		err = errors.Join(err, late, k.ForgetFlows())
	}()
	if err := k.apply(s); err != nil {
		return err
	}
	var shots []shot
	for i := range s.asks {
		a := &s.asks[i]
		if a.from.Pod {
			shots = append(shots, shot{ask: a, end: a.from, enter: true})
		}
		if a.to.Pod {
			shots = append(shots, shot{ask: a, end: a.to})
		}
	}
	for first := 0; first < len(shots); first += batch {
		if err := k.fire(shots, first, min(first+batch, len(shots))); err != nil {
			return err
		}
	}
	for i := range shots {
		if err := k.compare(s.sim, &shots[i]); err != nil {
			return fmt.Errorf("%s, seen at %s: %w", shots[i].Cell, shots[i].end.Name, err)
		}
	}
	return nil
}

// apply brings the maps to a step, in the agent's order.
func (k *kernel) apply(s *scene) error {
	k.NextVersion()
	addrs := map[netip.Addr]lxcmap.Info{}
	for _, e := range s.ends {
		if !e.Pod {
			continue
		}
		p := k.place(e.Addr)
		state, err := s.sim.MapState(e)
		if err != nil {
			return err
		}
		if err := k.SetPolicy(p.Endpoint, &p.policy, e.Addr.String(), state, true); err != nil {
			return fmt.Errorf("policy of %s: %w", e.Name, err)
		}
		layout := p.Layout
		layout.Identity = e.Identity
		addrs[e.Addr] = pkgendpoint.KernelInfo(layout, e.Prefix)
	}
	if err := k.Places(addrs, s.prefixes); err != nil {
		return err
	}
	for a, p := range k.at {
		if _, there := addrs[a]; there || p.policy == (trial.Policy{}) {
			continue
		}
		if err := k.ClearPolicy(p.Endpoint, &p.policy, a.String()); err != nil {
			return fmt.Errorf("policy of %s, which is gone: %w", a, err)
		}
		p.policy = trial.Policy{}
	}
	return nil
}

// place returns the programs of a pod's address, loaded when first needed.
func (k *kernel) place(a netip.Addr) *place {
	p := k.at[a]
	if p == nil {
		i := byte(len(k.at))
		l := plan.Layout{
			ID: 100 + uint16(i), Identity: identity.ReservedInit, IfIndex: 1000 + int(i), MAC: wtypes.MAC{2, 0, 0, 0, 1, i}, NodeMAC: wtypes.MAC{2, 0, 0, 0, 2, i},
			IPv4: netip.AddrFrom4([4]byte{100, 64, 0, i}), IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x64, 15: i}),
		}
		if a.Is4() {
			l.IPv4 = a
		} else {
			l.IPv6 = a
		}
		p = &place{Endpoint: k.Load(l)}
		k.at[a] = p
	}
	return p
}

// sport is the source port of a step's packet, no other's.
func sport(shot int) uint16 { return 1024 + uint16(shot) }

// fire runs packets and joins them with what is told of them.
func (k *kernel) fire(shots []shot, first, end int) error {
	for i := first; i < end; i++ {
		s := &shots[i]
		at := k.at[s.end.Addr]
		program, mac := at.To, wtypes.MAC{2, 0, 0, 0, 8, 8}
		if s.enter {
			program, mac = at.From, at.Layout.MAC
		}
		packet := trial.Packet{SrcMAC: mac, Proto: s.Probe.Proto, Flags: trial.TCPSYN,
			Src: netip.AddrPortFrom(s.from.Addr, sport(i)), Dst: netip.AddrPortFrom(s.to.Addr, s.Probe.Port)}
		var err error
		if s.act, err = k.Run(program, packet.Frame(), s.from.Addr); err != nil {
			return err
		}
		k.packets++
	}
	events, err := k.Events()
	if err != nil {
		return err
	}
	for _, e := range events {
		i := int(e.Source.Port) - int(sport(0))
		if i < first || i >= end {
			return fmt.Errorf("an event is of no packet: %+v", e)
		}
		shots[i].told = append(shots[i].told, e)
	}
	return nil
}

// compare holds a packet's fate and events against the table and the oracle.
func (k *kernel) compare(sim *simulate.Cluster, s *shot) error {
	act := uint32(trial.ActOK)
	switch {
	case s.Want != simulate.Allowed:
		act = trial.ActShot
	case s.enter && s.to.Pod:
		act = trial.ActRedirect
	}
	if s.want.letter != s.Want || s.act != act {
		return fmt.Errorf("want %c, the oracle says %c, the program returned %d, want %d; it told %+v", s.Want, s.want.letter, s.act, act, s.told)
	}
	verdicts := map[types.Direction]types.Verdict{types.Egress: types.Allow, types.Ingress: types.Allow}
	seen := map[types.Direction]bool{}
	for _, e := range s.told {
		own, rule := s.from, s.want.egress
		if e.Direction == types.Ingress {
			own, rule = s.to, s.want.ingress
		}
		got, known := sim.Rule(e.Rule)
		switch {
		case seen[e.Direction] || !own.Pod:
			return fmt.Errorf("%s was told twice or nobody's: %+v", e.Direction, s.told)
		case !known || got.Key() != rule.Key():
			return fmt.Errorf("%s by rule %d (%s), the oracle says (%s): %+v", e.Direction, e.Rule, got, rule, e)
		case e.Endpoint != k.at[own.Addr].Layout.ID || e.Source.Addr != s.from.Addr || e.Destination.Addr != s.to.Addr ||
			e.Destination.Port != s.Probe.Port || e.Protocol != s.Probe.Proto:
			return fmt.Errorf("the event is of something else: %+v", e)
		}
		seen[e.Direction] = true
		switch {
		case e.Reason.IsPolicy():
			verdicts[e.Direction] = types.Deny
		case e.Reason != drop.Forwarded:
			return fmt.Errorf("%s of another reason than policy: %+v", e.Direction, e)
		}
		k.verdicts++
	}
	if seen[types.Egress] != s.from.Pod || seen[types.Ingress] != s.to.Pod {
		return fmt.Errorf("an end's verdict was not told: %+v", s.told)
	}
	if got := simulate.Letter(verdicts[types.Egress], verdicts[types.Ingress]); got != s.Want {
		return fmt.Errorf("want %c, the events say %c: %+v", s.Want, got, s.told)
	}
	return nil
}
