package k8s

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// block translates a prefix and the prefixes to leave out. pods says that it
// also matches addresses of pods and nodes, as an ipBlock does. It returns nil
// where it reported a problem.
func (t *translator) block(cidr string, except []string, cidrPath, exceptPath string, pods bool) *types.CIDRPeer {
	prefix, ok := t.prefix(cidr, cidrPath, !pods)
	b := &types.CIDRPeer{Prefix: prefix, Pods: pods}
	for i, e := range except {
		at := fmt.Sprintf("%s[%d]", exceptPath, i)
		p, good := t.prefix(e, at, false)
		switch {
		case !good || !ok:
			ok = false
			continue
		case p.Addr().Is4() != prefix.Addr().Is4():
			t.fail(at, "%s is not of the family of the block %s; give a prefix of the same family", p, prefix)
			ok = false
		case p.Bits() < prefix.Bits() || !prefix.Contains(p.Addr()) || pods && p.Bits() == prefix.Bits():
			t.fail(at, "%s does not lie inside the block %s; give a part of it", p, prefix)
			ok = false
		}
		b.Except = append(b.Except, p)
	}
	if !ok {
		return nil
	}
	return b
}

// prefix reads a prefix; where bare is true also a single address, as the prefix
// of its full length. Bits after the prefix are cut off.
func (t *translator) prefix(s, path string, bare bool) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if a, aerr := netip.ParseAddr(s); err != nil && aerr == nil && a.Zone() == "" {
		p = netip.PrefixFrom(a, a.BitLen())
		if err = nil; !bare {
			t.fail(path, "%q has no length; write %s for the one address", clip(s), p)
			return netip.Prefix{}, false
		}
	}
	if err != nil {
		t.fail(path, "%q is no address prefix; write one like 10.0.0.0/8 or 2001:db8::/32", clip(s))
		return netip.Prefix{}, false
	}
	return labels.CanonicalPrefix(p), true
}

// portRange checks a numeric port from 1 and the end of its range. End is 0
// where the range is the port alone.
func (t *translator) portRange(first int64, last *int32, path string) (port, end uint16) {
	if first < 1 || first > 65535 {
		t.fail(path+".port", "is %d; give a number from 1 to 65535", first)
		return 0, 0
	}
	port = uint16(first)
	if last == nil {
		return port, 0
	}
	if *last > 65535 || int64(*last) < first {
		t.fail(path+".endPort", "is %d; give a number from port, %d, to 65535", *last, first)
		return port, 0
	}
	if int64(*last) > first {
		end = uint16(*last)
	}
	return port, end
}

// portName checks the name of a port (RFC 6335, as Kubernetes limits it).
func (t *translator) portName(name, path string) string {
	if len(validation.IsValidPortName(name)) > 0 {
		t.fail(path, "%q is neither a number nor a port's name; use up to 15 of a-z, 0-9 and -, at least one a letter", clip(name))
	}
	return name
}
