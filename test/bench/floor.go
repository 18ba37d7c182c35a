package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/lab"
)

var (
	floorA  = netip.MustParseAddr("10.77.0.2")
	floorB  = netip.MustParseAddr("10.77.0.3")
	gateway = netip.MustParseAddr("169.254.1.1")
	nodeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xfe}
	podMACs = [2]net.HardwareAddr{{2, 0, 0, 0, 0, 0x0a}, {2, 0, 0, 0, 0, 0x0b}}
)

// floor is two pods on routed veths whose host sides carry a bare program.
type floor struct {
	node, a, b lab.Netns
	links      []link.Link
	coll       []*ebpf.Collection
}

// newFloor builds the pods below dir and attaches the program of that name.
func newFloor(dir, object, program string) (*floor, error) {
	f := &floor{}
	if err := f.build(dir, object, program); err != nil {
		return nil, errors.Join(fmt.Errorf("building the pods of %s: %w", program, err), f.remove())
	}
	return f, nil
}

func (f *floor) build(dir, object, program string) (err error) {
	for i, ns := range []*lab.Netns{&f.node, &f.a, &f.b} {
		if *ns, err = lab.NewNetns(filepath.Join(dir, [...]string{"node", "a", "b"}[i])); err != nil {
			return err
		}
	}
	for i, pod := range []lab.Netns{f.a, f.b} {
		addr := [...]netip.Addr{floorA, floorB}[i]
		if err := f.wire(pod, hostNames[i], podMACs[i], addr); err != nil {
			return fmt.Errorf("wiring pod %s: %w", addr, err)
		}
	}
	return f.node.Do(func() error { return f.attach(object, program) })
}

var hostNames = [2]string{"floora", "floorb"}

// wire makes a pod's veth with its peer inside the pod.
func (f *floor) wire(pod lab.Netns, name string, mac net.HardwareAddr, addr netip.Addr) error {
	fd, err := os.Open(string(pod))
	if err != nil {
		return err
	}
	defer fd.Close()
	err = f.node.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, nodeMAC
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(int(fd.Fd()))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	if err != nil {
		return err
	}
	return pod.Do(func() error { return configurePod(addr) })
}

// configurePod gives the pod in whose namespace it runs its address and a
// default route by the gateway that a program or nobody answers for.
func configurePod(addr netip.Addr) error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	index := l.Attrs().Index
	return errors.Join(
		netlink.LinkSetUp(l),
		netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}),
		netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: unix.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: nodeMAC}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}),
	)
}

// attach puts a program on both host sides. Both share the maps of the first.
func (f *floor) attach(object, program string) error {
	for i := range hostNames {
		from, err := net.InterfaceByName(hostNames[i])
		if err != nil {
			return err
		}
		to, err := net.InterfaceByName(hostNames[1-i])
		if err != nil {
			return err
		}
		spec, err := floorSpec(object, program, i, to.Index)
		if err != nil {
			return err
		}
		shared := map[string]*ebpf.Map{}
		if i > 0 {
			for name := range spec.Maps {
				if name[0] != '.' { // those hold the constants
					shared[name] = f.coll[0].Maps[name]
				}
			}
		}
		coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
		if err != nil {
			return err
		}
		f.coll = append(f.coll, coll)
		l, err := link.AttachTCX(link.TCXOptions{Interface: from.Index, Program: coll.Programs[program], Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		f.links = append(f.links, l)
	}
	return fillFloor(f.coll[0])
}

// floorSpec is one program of the object with the constants of pod i, which
// sends to the interface target.
func floorSpec(object, program string, i, target int) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return name != program })
	for name, value := range map[string]any{
		"target_ifindex": uint32(target), "dst_mac": [6]byte(podMACs[1-i]), "src_mac": [6]byte(nodeMAC), "src_identity": uint32(1001 + i),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("constant %s: %w", name, err)
		}
	}
	return spec, nil
}

// fillFloor gives full_peer's maps two endpoints and a size that is no toy's.
func fillFloor(coll *ebpf.Collection) error {
	type endpoint struct {
		Ifindex, Identity uint32
		MAC, NodeMAC      [6]byte
		Pad               uint32
	}
	type policyKey struct {
		Identity   uint32
		Port       uint16
		Proto, Dir uint8
	}
	type prefix struct{ Bits, Addr uint32 }
	var errs error
	put := func(name string, key, value any) { errs = errors.Join(errs, coll.Maps[name].Put(key, value)) }
	for i, addr := range []netip.Addr{floorA, floorB} {
		dev, err := net.InterfaceByName(hostNames[i])
		if err != nil {
			return err
		}
		id, a4 := uint32(1001+i), addr.As4()
		put("eps", a4[:], endpoint{uint32(dev.Index), id, [6]byte(podMACs[i]), [6]byte(nodeMAC), 0})
		put("ipcache", append([]byte{32, 0, 0, 0}, a4[:]...), id)
		for dir := range uint8(2) {
			for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				put("policy", policyKey{id, 0, proto, dir}, uint64(1))
			}
		}
	}
	for i := range uint32(10000) {
		put("ipcache", prefix{32, i<<8 | 11}, 2000+i)
	}
	for i := range uint32(2000) {
		put("policy", policyKey{3000 + i, 0x5000, unix.IPPROTO_TCP, uint8(i & 1)}, uint64(1))
	}
	return errs
}

func (f *floor) remove() (err error) {
	for _, l := range f.links {
		err = errors.Join(err, l.Close())
	}
	for _, c := range f.coll {
		c.Close()
	}
	for _, ns := range []lab.Netns{f.a, f.b, f.node} {
		if ns != "" {
			err = errors.Join(err, ns.Remove())
		}
	}
	return err
}
