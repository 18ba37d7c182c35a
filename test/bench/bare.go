package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/pkg/lab"
)

// Names of the floor of a CNI ADD in the report.
const (
	bareName    = "bare"
	bareTCXName = "bare and TCX"
	bareLink    = "bare0"
)

// bare does what any plugin must, without a process, a lease or an agent: a
// veth with its peer in the pod, address, routes, both ends up; and, where
// asked, attaches a loaded program by TCX.
type bare struct {
	node lab.Netns
	coll *ebpf.Collection
	tcx  link.Link // of the pod that is attached
}

func newBare(o options, node lab.Netns) (*bare, error) {
	spec, err := floorSpec(filepath.Join(o.dir, "redir.o"), baseline, 0, 1)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", baseline, err)
	}
	return &bare{node: node, coll: coll}, nil
}

func (b *bare) close() (err error) {
	b.coll.Close()
	if b.tcx != nil {
		err = b.tcx.Close()
	}
	return err
}

func (b *bare) adder(tcx bool) adder {
	name := bareName
	if tcx {
		name = bareTCXName
	}
	return adder{name,
		func(_ context.Context, _ string, pod lab.Netns) (float64, error) {
			return timed(func() error { return b.add(pod, tcx) })
		},
		func(context.Context, string, lab.Netns) (float64, error) { return timed(b.del) },
	}
}

func (b *bare) add(pod lab.Netns, tcx bool) error {
	fd, err := os.Open(string(pod))
	if err != nil {
		return err
	}
	defer fd.Close()
	err = b.node.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bareLink
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(fd.Fd()))}); err != nil {
			return err
		}
		l, err := netlink.LinkByName(bareLink)
		if err != nil {
			return err
		}
		index := l.Attrs().Index
		route := &netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: floorA.AsSlice(), Mask: net.CIDRMask(32, 32)}}
		if err := errors.Join(netlink.LinkSetUp(l), netlink.RouteAdd(route)); err != nil || !tcx {
			return err
		}
		b.tcx, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: b.coll.Programs[baseline], Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		return err
	}
	return pod.Do(func() error { return configurePod(floorA) })
}

func (b *bare) del() error {
	err := b.node.Do(func() error {
		l, err := netlink.LinkByName(bareLink)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	if b.tcx != nil {
		err = errors.Join(err, b.tcx.Close())
		b.tcx = nil
	}
	return err
}
