package main

import (
	"errors"
	"fmt"
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
	object     string
	links      []link.Link
	coll       []*ebpf.Collection
	attached   string
}

func newFloor(dir, object string) (f *floor, err error) {
	f = &floor{object: object}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.remove())
		}
	}()
	for i, ns := range []*lab.Netns{&f.node, &f.a, &f.b} {
		if *ns, err = lab.NewNetns(filepath.Join(dir, [...]string{"node", "a", "b"}[i])); err != nil {
			return nil, err
		}
	}
	for i, pod := range []lab.Netns{f.a, f.b} {
		addr := [...]netip.Addr{floorA, floorB}[i]
		if err := f.wire(pod, hostNames[i], podMACs[i], addr); err != nil {
			return nil, fmt.Errorf("wiring floor pod %s: %w", addr, err)
		}
	}
	return f, nil
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

// attach puts a program on both host sides; the same again does nothing.
func (f *floor) attach(program string) error {
	if f.attached == program {
		return nil
	}
	f.detach()
	err := f.node.Do(func() error {
		var shared map[string]*ebpf.Map
		for i := range hostNames {
			if err := f.attachOne(program, i, &shared); err != nil {
				return fmt.Errorf("attaching %s: %w", program, err)
			}
		}
		return nil
	})
	f.attached = program
	return err
}

func (f *floor) attachOne(program string, i int, shared *map[string]*ebpf.Map) error {
	from, err := net.InterfaceByName(hostNames[i])
	if err != nil {
		return err
	}
	to, err := net.InterfaceByName(hostNames[1-i])
	if err != nil {
		return err
	}
	spec, err := ebpf.LoadCollectionSpec(f.object)
	if err != nil {
		return err
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	for name, value := range map[string]any{
		"target_ifindex": uint32(to.Index), "dst_mac": [6]byte(podMACs[1-i]), "src_mac": [6]byte(nodeMAC), "src_identity": uint32(1001 + i),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return err
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: *shared})
	if err != nil {
		return err
	}
	f.coll = append(f.coll, coll)
	if *shared == nil && program == "full_peer" {
		*shared = map[string]*ebpf.Map{}
		for _, name := range []string{"eps", "ipcache", "ct", "policy"} {
			(*shared)[name] = coll.Maps[name]
		}
		if err := fillFloor(coll); err != nil {
			return err
		}
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: from.Index, Program: coll.Programs[program], Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return err
	}
	f.links = append(f.links, l)
	return nil
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
	put := func(name string, key, value any, errs *error) {
		*errs = errors.Join(*errs, coll.Maps[name].Put(key, value))
	}
	var errs error
	for i, addr := range []netip.Addr{floorA, floorB} {
		dev, err := net.InterfaceByName(hostNames[i])
		if err != nil {
			return err
		}
		id, a4 := uint32(1001+i), addr.As4()
		put("eps", a4[:], endpoint{uint32(dev.Index), id, [6]byte(podMACs[i]), [6]byte(nodeMAC), 0}, &errs)
		put("ipcache", append([]byte{32, 0, 0, 0}, a4[:]...), id, &errs)
		for dir := range uint8(2) {
			for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				put("policy", policyKey{id, 0, proto, dir}, uint64(1), &errs)
			}
		}
	}
	for i := range uint32(10000) {
		put("ipcache", prefix{32, i<<8 | 11}, 2000+i, &errs)
	}
	for i := range uint32(2000) {
		put("policy", policyKey{3000 + i, 0x5000, unix.IPPROTO_TCP, uint8(i & 1)}, uint64(1), &errs)
	}
	return errs
}

func (f *floor) detach() {
	for _, l := range f.links {
		l.Close()
	}
	for _, c := range f.coll {
		c.Close()
	}
	f.links, f.coll, f.attached = nil, nil, ""
}

func (f *floor) remove() (err error) {
	f.detach()
	for _, ns := range []lab.Netns{f.a, f.b, f.node} {
		if ns != "" {
			err = errors.Join(err, ns.Remove())
		}
	}
	return err
}
