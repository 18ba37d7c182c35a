package differential

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	sources "github.com/weirnet/weir/bpf"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/loader"
	pkgendpoint "github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/eventsmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/pkg/monitor"
	wtypes "github.com/weirnet/weir/pkg/types"
)

const (
	endpoints = 24   // whose programs are loaded; a world uses some of them
	flowRoom  = 8192 // of a conntrack map; a world has far fewer flows
)

// endpoint is a pair of loaded entry programs, for a pod of any world.
type endpoint struct {
	layout   plan.Layout // the identity is the one that the programs were loaded with
	from, to *ebpf.Program
}

// node is the data plane as an agent sets it up: maps, bodies, entry programs.
type node struct {
	lxc     *lxcmap.Map
	config  *lxcmap.Config
	slots   *policymap.Slots
	ipcache *ipcachemap.Map
	ct      [2]*ctmap.Map // IPv4, IPv6
	events  *ringbuf.Reader
	pods    []*endpoint

	version  uint64                            // of policy results, for the slots
	addrs    map[netip.Addr]bool               // in weir_lxc
	prefixes map[netip.Prefix]ipcachemap.Entry // in weir_ipcache
}

// openNode makes the maps, loads the bodies and the programs of all endpoints.
func openNode(t *testing.T, fs string, seed uint64) *node {
	t.Helper()
	root, err := bpf.OpenRoot(fs)
	if err != nil {
		t.Fatal(err)
	}
	must := func(c io.Closer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Cleanup(func() {
		if err := errors.Join(os.RemoveAll(root.Map("")), os.RemoveAll(root.Shapes())); err != nil {
			t.Error(err)
		}
	})
	n := &node{addrs: map[netip.Addr]bool{}, prefixes: map[netip.Prefix]ipcachemap.Entry{}}
	n.lxc, err = lxcmap.OpenOrCreate(root)
	must(n.lxc, err)
	n.config, err = lxcmap.OpenOrCreateConfig(root)
	must(n.config, err)
	n.slots, err = policymap.Open(root, policymap.Limits{Spares: 256})
	must(n.slots, err)
	n.ipcache, err = ipcachemap.OpenOrCreate(root, 0)
	must(n.ipcache, err)
	for i, f := range []ctmap.Family{ctmap.IPv4, ctmap.IPv6} {
		n.ct[i], err = ctmap.OpenOrCreate(root, f, flowRoom)
		must(n.ct[i], err)
	}
	fragments, err := ctmap.OpenOrCreateFragments(root)
	must(fragments, err)
	metrics, err := metricsmap.OpenOrCreate(root)
	must(metrics, err)
	events, err := eventsmap.OpenOrCreate(root, 1<<20)
	must(events, err)
	n.events, err = ringbuf.NewReader(events.Map())
	must(n.events, err)

	l, err := loader.New(loader.Config{
		StateDir: t.TempDir(), Root: root, Sources: sources.Sources, Objects: sources.Objects, Logger: slog.New(slog.DiscardHandler),
		Maps: map[string]*ebpf.Map{
			"weir_lxc": n.lxc.Map(), "weir_epconfig": n.config.Map(), "weir_policy": n.slots.Map(), "weir_ipcache": n.ipcache.Map(),
			"weir_ct4": n.ct[0].Map(), "weir_ct6": n.ct[1].Map(), "weir_frag": fragments.Map(),
			"weir_metrics": metrics.Map(), "weir_events": events.Map(),
		},
	})
	must(l, err)
	n.load(t, l, gen{rand.New(rand.NewPCG(seed, 0))})
	return n
}

// load makes the endpoints, with addresses drawn by g.
func (n *node) load(t *testing.T, l *loader.Loader, g gen) {
	t.Helper()
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
		id := uint16(100 + 7*i)
		e := &endpoint{layout: plan.Layout{
			ID: id, Identity: identity.ReservedInit, IfIndex: 1000 + i, MAC: wtypes.MAC{2, 0, 0, 0, 1, byte(i)}, NodeMAC: wtypes.MAC{2, 0, 0, 0, 2, byte(i)},
			IPv4: fresh(g.podAddr4), IPv6: fresh(g.podAddr6),
		}}
		programs, err := l.Load(t.Context(), loader.Shape{IPv4: true, IPv6: true}, loader.Endpoint{
			ID: id, Identity: uint32(e.layout.Identity), MAC: e.layout.MAC, NodeMAC: e.layout.NodeMAC,
			IPv4: e.layout.IPv4, IPv6: e.layout.IPv6, IfIndex: uint32(e.layout.IfIndex),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct {
			from loader.Program
			to   **ebpf.Program
		}{{programs.From, &e.from}, {programs.To, &e.to}} {
			prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.from.ID()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { prog.Close() })
			*p.to = prog
		}
		if err := programs.Close(); err != nil {
			t.Fatal(err)
		}
		n.pods = append(n.pods, e)
	}
}

// apply writes the world as it is resolved, in the agent's order: policies,
// then what addresses stand for, then what went. Pods that changed get a new
// revision.
func (n *node) apply(w *world, changed func(*pod) bool) error {
	n.version++
	for _, p := range w.pods {
		if p.at == nil {
			continue
		}
		if err := n.applyPolicy(p, changed(p)); err != nil {
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
		switch {
		case e.local():
			layout := e.pod.at.layout
			layout.Identity = e.id
			addrs[e.addr] = pkgendpoint.KernelInfo(layout, e.where)
		case e.node != nil && e.node.Local && w.inLXC:
			addrs[e.addr] = lxcmap.Info{Identity: uint32(e.id), PrefixIdentity: uint32(e.where), Flags: lxcmap.FlagNode}
		}
		if e.pod != nil || e.node != nil {
			prefixes[netip.PrefixFrom(e.addr, e.addr.BitLen())] = ipcachemap.Entry{Identity: uint32(e.id), PrefixIdentity: uint32(e.where)}
		}
	}
	if err := n.ipcache.Upsert(prefixes); err != nil {
		return err
	}
	var gone []netip.Prefix
	for p := range n.prefixes {
		if _, ok := prefixes[p]; !ok {
			gone = append(gone, p)
		}
	}
	n.prefixes = prefixes
	if err := n.ipcache.Delete(gone...); err != nil {
		return err
	}
	for a, info := range addrs {
		if err := n.lxc.Put(a, info); err != nil {
			return err
		}
		delete(n.addrs, a)
	}
	for a := range n.addrs {
		if err := n.lxc.Delete(a); err != nil {
			return err
		}
	}
	clear(n.addrs)
	for a := range addrs {
		n.addrs[a] = true
	}
	return nil
}

func (n *node) applyPolicy(p *pod, changed bool) (err error) {
	want, former := pkgendpoint.KernelEntries(p.state), p.slot
	if former == 0 {
		p.slot, err = n.slots.Acquire(p.group(), n.version, want)
	} else {
		p.slot, err = n.slots.Update(former, p.group(), n.version, want)
	}
	if err != nil {
		return err
	}
	if changed {
		p.revision = n.config.NextRevision()
	}
	if err := n.config.SetPolicy(p.at.layout.ID, p.slot, p.revision); err != nil {
		return err
	}
	if former != 0 && former != p.slot {
		return n.slots.Release(former, p.group())
	}
	return nil
}

// retire takes the world's pods off the node and forgets all flows.
func (n *node) retire(w *world) error {
	for _, p := range w.pods {
		if p.at == nil {
			continue
		}
		if err := n.config.Clear(p.at.layout.ID); err != nil {
			return err
		}
		if err := n.slots.Release(p.slot, p.group()); err != nil {
			return err
		}
	}
	for _, m := range n.ct {
		if _, _, err := m.GC(0, func(ctmap.Flow) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// run gives a frame to a program and returns its verdict and events.
func (n *node) run(p *ebpf.Program, frame []byte) (act uint32, events []monitor.Event, err error) {
	act, err = p.Run(&ebpf.RunOptions{Data: frame})
	if err != nil {
		return 0, nil, fmt.Errorf("run %s: %w", p, err)
	}
	n.events.SetDeadline(time.Now())
	for {
		record, err := n.events.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return act, events, nil
		}
		if err != nil {
			return 0, nil, fmt.Errorf("read events: %w", err)
		}
		e, err := monitor.Decode(record.RawSample, time.Time{})
		if err != nil {
			return 0, nil, err
		}
		events = append(events, e)
	}
}

// flows lists what conntrack holds.
func (n *node) flows() (map[flowKey]ctmap.Flow, error) {
	all := map[flowKey]ctmap.Flow{}
	for _, m := range n.ct {
		err := m.Each(func(f ctmap.Flow) bool {
			all[flowKey{f.Initiator, f.Responder, wtypes.Proto(f.Protocol)}] = f
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
