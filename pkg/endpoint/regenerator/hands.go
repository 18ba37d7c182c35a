package regenerator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/loader"
	"github.com/weirnet/weir/pkg/datapath/orchestrator"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/datapath/sysctl"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/maps/ctmap"
)

// Datapath loads and unloads programs through the orchestrator.
type Datapath struct {
	Orchestrator *orchestrator.Orchestrator
}

// Load waits for the base initialisation and loads the endpoint's programs.
func (d Datapath) Load(ctx context.Context, l plan.Layout) (Programs, error) {
	p, err := d.Orchestrator.ReloadDatapath(ctx, loaderEndpoint(l))
	if err != nil {
		return nil, err
	}
	return &loadedPrograms{loaded: p}, nil
}

// Unload detaches the endpoint's programs; a link that is gone is no error.
func (d Datapath) Unload(_ context.Context, l plan.Layout) error {
	return d.Orchestrator.Unload(loaderEndpoint(l))
}

func loaderEndpoint(l plan.Layout) loader.Endpoint {
	return loader.Endpoint{
		ID: l.ID, Identity: uint32(l.Identity), MAC: l.MAC, NodeMAC: l.NodeMAC,
		IPv4: l.IPv4, IPv6: l.IPv6, IfIndex: uint32(l.IfIndex),
	}
}

type loadedPrograms struct {
	loaded *orchestrator.Loaded
	closed bool
}

// Attach replaces the programs on the link and gives up the handles.
func (p *loadedPrograms) Attach(context.Context) error {
	if err := p.loaded.Attach(); err != nil {
		return err
	}
	return p.Close() // what is attached stays
}

func (p *loadedPrograms) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	return p.loaded.Close()
}

// Links opens and closes the way between the node and its pods.
type Links struct {
	Routes     route.Table
	IPv4, IPv6 bool // families of the node
}

// Connect makes the host side ready and sets it up, then adds a route for each
// address.
func (c Links) Connect(_ context.Context, l plan.Layout) error {
	host, err := link.ByIndex(l.IfIndex)
	if err != nil {
		return err
	}
	if m := host.Mark; m.Endpoint != l.ID || m.PodMAC != l.MAC || !host.Marked {
		m.Endpoint, m.PodMAC = l.ID, l.MAC
		if err := link.SetMark(l.IfIndex, m); err != nil {
			return err
		}
	}
	if err := link.SetSilent(l.IfIndex); err != nil {
		return err
	}
	if err := sysctl.SetVeth(host.Name, c.IPv4, c.IPv6); err != nil {
		return err
	}
	if err := link.SetUp(l.IfIndex); err != nil {
		return err
	}
	for _, a := range l.Addrs() {
		if err := c.Routes.Ensure(a, l.IfIndex); err != nil {
			return err
		}
	}
	return nil
}

// Disconnect removes the routes and sets the host side down; the link itself
// belongs to the CNI plugin.
func (c Links) Disconnect(_ context.Context, l plan.Layout) error {
	for _, a := range l.Addrs() {
		if err := c.Routes.Remove(a); err != nil {
			return err
		}
	}
	host, err := link.ByIndex(l.IfIndex)
	if err == nil && host.Mark.Endpoint != l.ID && host.MAC != l.NodeMAC {
		return nil // the index is somebody else's now
	}
	if err == nil {
		err = link.SetDown(l.IfIndex)
	}
	if err != nil && !errors.Is(err, link.ErrNotFound) {
		return err
	}
	return nil
}

// LinkExists reports whether the host side is still there: a link of its index,
// with the same peer, whatever its name is now. Records of former builds do not
// tell the peer; then the hardware address or the name has to be the same.
func (c Links) LinkExists(l endpoint.Link) (bool, error) {
	h, err := link.ByIndex(l.IfIndex)
	switch {
	case errors.Is(err, link.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case l.PeerIndex != 0:
		return h.PeerIndex == l.PeerIndex, nil
	}
	return h.PeerIndex != 0 && (h.MAC == l.NodeMAC || h.Name == l.HostInterface), nil
}

// Conntrack forgets flows in the maps of both families.
type Conntrack struct {
	IPv4, IPv6 *ctmap.Map
}

// Purge deletes every flow of an address.
func (c Conntrack) Purge(a netip.Addr) error {
	m := c.IPv4
	if a.Is6() {
		m = c.IPv6
	}
	if m == nil {
		return fmt.Errorf("no connection map is open for the family of %s", a)
	}
	_, err := m.Purge(a)
	return err
}
