package attach

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	namePrefix = "weir_"
	handle     = 1
	priority   = 1
)

// program is a loaded program of type SCHED_CLS.
type program interface {
	FD() int
	Name() string
}

// Attached holds the kernel's ids of the programs that run on a link, 0 where
// none of ours does.
type Attached struct {
	From uint32 // ingress hook
	To   uint32 // egress hook
}

// hook is one side of clsact.
type hook struct {
	name   string
	parent uint32
}

func ingress() hook { return hook{"ingress", netlink.HANDLE_MIN_INGRESS} }
func egress() hook  { return hook{"egress", netlink.HANDLE_MIN_EGRESS} }

// Attach puts from on the ingress hook and to on the egress hook of a link,
// in place of former programs of ours. If the second hook fails on a link that
// had none of ours, the first one is taken away again; otherwise the link is
// left with one new and one former program, both of which work.
func Attach(ifindex int, from, to program) error {
	added, err := addClsact(ifindex)
	if err != nil {
		return err
	}
	// What the node sends comes first: a link that only receives lets nothing out.
	err = replace(ifindex, egress(), to)
	if err == nil {
		err = replace(ifindex, ingress(), from)
	}
	if err != nil && added {
		err = errors.Join(err, removeClsact(ifindex))
	}
	return err
}

func clsact(ifindex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// addClsact reports whether there was none before.
func addClsact(ifindex int) (bool, error) {
	err := netlink.QdiscAdd(clsact(ifindex))
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add a clsact qdisc to link %d: %w", ifindex, err)
	}
	return true, nil
}

func removeClsact(ifindex int) error {
	if err := netlink.QdiscDel(clsact(ifindex)); err != nil && !isGone(err) {
		return fmt.Errorf("remove the clsact qdisc of link %d: %w", ifindex, err)
	}
	return nil
}

func replace(ifindex int, h hook, p program) error {
	if !strings.HasPrefix(p.Name(), namePrefix) {
		return fmt.Errorf("attach program %q: it could not be recognised later; its name must start with %s", p.Name(), namePrefix)
	}
	err := netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: h.parent, Handle: handle, Priority: priority, Protocol: unix.ETH_P_ALL,
		},
		Fd: p.FD(), Name: p.Name(), DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("attach %s to the %s hook of link %d: %w", p.Name(), h.name, ifindex, err)
	}
	return nil
}

// Query tells which of our programs run on a link. A link without any gives
// the zero value, as does one that does not exist (the kernel lists no filters
// for it and no error).
func Query(ifindex int) (Attached, error) {
	var a Attached
	for _, side := range []struct {
		hook hook
		id   *uint32
	}{{ingress(), &a.From}, {egress(), &a.To}} {
		ours, _, err := filters(ifindex, side.hook)
		if err != nil {
			return Attached{}, err
		}
		if len(ours) > 0 {
			*side.id = uint32(ours[0].Id)
		}
	}
	return a, nil
}

// filters lists a hook's filters: ours, and the number of all others.
func filters(ifindex int, h hook) (ours []*netlink.BpfFilter, others int, err error) {
	all, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}, h.parent)
	if errors.Is(err, unix.EINVAL) {
		return nil, 0, nil // no clsact
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list the filters on the %s hook of link %d: %w", h.name, ifindex, err)
	}
	for _, f := range all {
		if b, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(b.Name, namePrefix) {
			ours = append(ours, b)
		} else {
			others++
		}
	}
	return ours, others, nil
}

// Detach removes our filters, and the clsact qdisc if no other filter needs it.
// A link or filter that is gone is no error.
func Detach(ifindex int) error {
	left := 0
	found := false
	for _, h := range []hook{ingress(), egress()} {
		ours, others, err := filters(ifindex, h)
		if isGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		left += others
		for _, f := range ours {
			found = true
			if err := netlink.FilterDel(f); err != nil && !isGone(err) {
				return fmt.Errorf("remove %s from the %s hook of link %d: %w", f.Name, h.name, ifindex, err)
			}
		}
	}
	if left > 0 || !found {
		return nil
	}
	return removeClsact(ifindex)
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL)
}
