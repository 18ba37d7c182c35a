package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// kernelAddresses reads the addresses of one network namespace.
type kernelAddresses struct {
	ns     netns.NsHandle
	handle *netlink.Handle
}

// openKernel opens the namespace of the calling thread.
func openKernel() (*kernelAddresses, error) {
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open the node's network namespace: %w", err)
	}
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open rtnetlink: %w", err), ns.Close())
	}
	return &kernelAddresses{ns: ns, handle: handle}, nil
}

func (k *kernelAddresses) close() {
	k.handle.Close()
	_ = k.ns.Close() // a descriptor for reading
}

// list returns all addresses but loopback ones, sorted.
func (k *kernelAddresses) list() ([]netip.Addr, error) {
	found, err := k.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	var out []netip.Addr
	for _, f := range found {
		if f.IPNet == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(f.IP)
		if a = a.Unmap(); ok && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// changes returns a channel that gets a token after a change of addresses and is
// closed when the kernel's messages cannot be followed any more or ctx ends.
func (k *kernelAddresses) changes(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{Namespace: &k.ns, ErrorCallback: func(error) {}})
	if err != nil {
		return nil, fmt.Errorf("follow the node's addresses: %w", err)
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		stop := context.AfterFunc(ctx, func() { close(done) })
		defer func() {
			if stop() {
				close(done)
			}
		}()
		for range updates { // closed by the library on an error and after done
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, nil
}
