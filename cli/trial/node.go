package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	sources "github.com/weirnet/weir/bpf"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/loader"
	"github.com/weirnet/weir/pkg/datapath/pinned"
	pkgendpoint "github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/pkg/monitor"
	"github.com/weirnet/weir/pkg/policy"
)

// What a program does with a frame.
const (
	ActOK, ActShot, ActRedirect = 0, 2, 7
)

const (
	flowRoom = 8192    // of a conntrack map
	ringSize = 1 << 20 // of the events
)

// Node is the data plane as an agent sets it up: maps, bodies, entry programs.
type Node struct {
	Config *lxcmap.Config

	root    bpf.Root
	loader  *loader.Loader
	maps    *pinned.Maps
	events  *ringbuf.Reader
	closers []io.Closer

	version  uint64                            // of policy results, for the slots
	addrs    map[netip.Addr]lxcmap.Info        // in weir_lxc
	prefixes map[netip.Prefix]ipcachemap.Entry // in weir_ipcache
}

// Open makes the maps below fs, a directory of a bpffs of its own; objects that
// have to be compiled go to stateDir. Close takes everything away.
func Open(fs, stateDir string) (_ *Node, err error) {
	n := &Node{addrs: map[netip.Addr]lxcmap.Info{}, prefixes: map[netip.Prefix]ipcachemap.Entry{}}
	if n.root, err = bpf.OpenRoot(fs); err != nil {
		return nil, err
	}
	if err := n.open(stateDir); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) open(stateDir string) (err error) {
	open := func(s pinned.Sizes) (*pinned.Maps, error) { return pinned.Open(n.root, s) }
	n.maps, err = keep(n, open, pinned.Sizes{CTEntries: flowRoom, EventBytes: ringSize, Policies: policymap.Limits{Spares: 256}})
	if err != nil {
		return err
	}
	n.Config = n.maps.Config
	if n.events, err = keep(n, ringbuf.NewReader, n.maps.Events.Map()); err != nil {
		return err
	}
	n.loader, err = keep(n, loader.New, loader.Config{
		StateDir: stateDir, Root: n.root, Sources: sources.Sources, Objects: sources.Objects, Maps: n.maps.Named(), Logger: slog.New(slog.DiscardHandler),
	})
	return err
}

// keep opens something and remembers to close it.
func keep[A any, C io.Closer](n *Node, open func(A) (C, error), arg A) (C, error) {
	c, err := open(arg)
	if err == nil {
		n.closers = append(n.closers, c)
	}
	return c, err
}

// Close closes everything and removes the pins.
func (n *Node) Close() error {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i].Close())
	}
	n.closers = nil
	return errors.Join(append(errs, os.RemoveAll(n.root.Map("")), os.RemoveAll(n.root.Shapes()))...)
}

// Endpoint is a pair of loaded entry programs.
type Endpoint struct {
	Layout   plan.Layout // as the programs were loaded
	From, To *ebpf.Program
}

// Load loads the programs of an endpoint.
func (n *Node) Load(ctx context.Context, layout plan.Layout) (*Endpoint, error) {
	e := &Endpoint{Layout: layout}
	programs, err := n.loader.Load(ctx, loader.Shape{IPv4: true, IPv6: true}, loader.Endpoint{
		ID: layout.ID, Identity: uint32(layout.Identity), MAC: layout.MAC, NodeMAC: layout.NodeMAC,
		IPv4: layout.IPv4, IPv6: layout.IPv6, IfIndex: uint32(layout.IfIndex),
	})
	if err != nil {
		return nil, err
	}
	for _, p := range []struct {
		from loader.Program
		to   **ebpf.Program
	}{{programs.From, &e.From}, {programs.To, &e.To}} {
		if *p.to, err = keep(n, ebpf.NewProgramFromID, ebpf.ProgramID(p.from.ID())); err != nil {
			return nil, errors.Join(err, programs.Close())
		}
	}
	return e, programs.Close()
}

// Policy is what an endpoint is held to. The zero value is none.
type Policy struct {
	Slot     uint32
	Revision uint32
}

// NextVersion begins a new version of policy results: of equal groups of one
// version the results are the same.
func (n *Node) NextVersion() { n.version++ }

// SetPolicy holds an endpoint to a map state; anew: under a new revision.
func (n *Node) SetPolicy(e *Endpoint, p *Policy, group string, state policy.MapState, anew bool) (err error) {
	want, former := pkgendpoint.KernelLines(state), p.Slot
	if former == 0 {
		p.Slot, err = n.maps.Slots.Acquire(group, n.version, want)
	} else {
		p.Slot, err = n.maps.Slots.Update(former, group, n.version, want)
	}
	if err != nil {
		return err
	}
	if anew {
		p.Revision = n.Config.NextRevision()
	}
	if err := n.Config.SetPolicy(e.Layout.ID, p.Slot, p.Revision); err != nil {
		return err
	}
	if former != 0 && former != p.Slot {
		return n.maps.Slots.Release(former, group)
	}
	return nil
}

// Dump reads the lines that an endpoint is held to from the kernel.
func (n *Node) Dump(p *Policy) (map[policymap.Key]policymap.Entry, error) {
	return n.maps.Slots.Dump(p.Slot)
}

// ClearPolicy takes an endpoint's policy away.
func (n *Node) ClearPolicy(e *Endpoint, p *Policy, group string) error {
	if err := n.Config.Clear(e.Layout.ID); err != nil {
		return err
	}
	return n.maps.Slots.Release(p.Slot, group)
}

// Places says what addresses stand for: those of weir_lxc and of weir_ipcache.
// What was there before and is not among them goes, last.
func (n *Node) Places(addrs map[netip.Addr]lxcmap.Info, prefixes map[netip.Prefix]ipcachemap.Entry) error {
	if err := n.maps.IPCache.Upsert(prefixes); err != nil {
		return err
	}
	var gone []netip.Prefix
	for p := range n.prefixes {
		if _, ok := prefixes[p]; !ok {
			gone = append(gone, p)
		}
	}
	n.prefixes = prefixes
	if err := n.maps.IPCache.Delete(gone...); err != nil {
		return err
	}
	for a, info := range addrs {
		if err := n.maps.LXC.Put(a, info); err != nil {
			return err
		}
	}
	for a := range n.addrs {
		if _, ok := addrs[a]; !ok {
			if err := n.maps.LXC.Delete(a); err != nil {
				return err
			}
		}
	}
	n.addrs = addrs
	return nil
}

// uplink is the index of the device by which the outside's packets come.
const uplink = 1 << 20

// device is the one by which packets of an address come to another pod's program:
// none if they are made on this node.
func (n *Node) device(src netip.Addr) uint32 {
	if pod, ok := n.addrs[src]; ok {
		return pod.IfIndex
	}
	if n.prefixes[netip.PrefixFrom(src, src.BitLen())].Identity == uint32(identity.ReservedHost) {
		return 0
	}
	return uplink
}

// Run gives a frame with a source address to a program once and returns its verdict.
func (n *Node) Run(p *ebpf.Program, frame []byte, src netip.Addr) (act uint32, err error) {
	// The head of struct __sk_buff, up to ingress_ifindex.
	context := [10]uint32{9: n.device(src)}
	if act, err = p.Run(&ebpf.RunOptions{Data: frame, Context: context}); err != nil {
		return 0, fmt.Errorf("run %s: %w", p, err)
	}
	return act, nil
}

// Events returns what was told since the last call. The ring holds those of some
// thousand frames.
func (n *Node) Events() (events []monitor.Event, err error) {
	n.events.SetDeadline(time.Now())
	var record ringbuf.Record
	for {
		err := n.events.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		e, err := monitor.Decode(record.RawSample, time.Time{})
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
}

// Flows lists what conntrack holds.
func (n *Node) Flows() ([]ctmap.Flow, error) {
	var all []ctmap.Flow
	for _, m := range []*ctmap.Map{n.maps.CT4, n.maps.CT6} {
		flows, err := m.Dump()
		if err != nil {
			return nil, err
		}
		all = append(all, flows...)
	}
	return all, nil
}

// ForgetFlows empties conntrack.
func (n *Node) ForgetFlows() error {
	for _, m := range []*ctmap.Map{n.maps.CT4, n.maps.CT6} {
		if _, _, err := m.GC(math.MaxUint32, func(ctmap.Flow) {}); err != nil {
			return err
		}
	}
	return nil
}
