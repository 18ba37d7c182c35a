package labels

import (
	"net/netip"
	"strings"
)

// CIDRLabel returns the label of an address prefix: the source cidr and the
// masked prefix as key, an IPv6 prefix with '-' for ':' and a 0 before a leading
// and after a trailing '-' of the address ("::/0" is "0--0/0"). An IPv4-mapped
// IPv6 prefix of 96 bits and more is the IPv4 prefix. An invalid prefix gives
// the zero Label.
func CIDRLabel(p netip.Prefix) Label {
	p = CanonicalPrefix(p)
	if !p.IsValid() {
		return Label{}
	}
	if p.Addr().Is4() {
		return Label{Source: SourceCIDR, Key: p.String()}
	}
	addr, bits, _ := strings.Cut(p.String(), "/")
	addr = strings.ReplaceAll(addr, ":", "-")
	if strings.HasPrefix(addr, "-") {
		addr = "0" + addr
	}
	if strings.HasSuffix(addr, "-") {
		addr += "0"
	}
	return Label{Source: SourceCIDR, Key: addr + "/" + bits}
}

// CanonicalPrefix masks the prefix and turns an IPv4-mapped IPv6 prefix of 96
// bits and more into the IPv4 prefix. An invalid prefix gives the zero Prefix.
func CanonicalPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// Prefix returns the prefix that a label of CIDRLabel stands for; false for
// every other label.
func (l Label) Prefix() (netip.Prefix, bool) {
	if l.Source != SourceCIDR || l.Value != "" {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(strings.ReplaceAll(l.Key, "-", ":"))
	if err != nil || CIDRLabel(p) != l {
		return netip.Prefix{}, false
	}
	return p, true
}

// Prefix returns the prefix of the set's first cidr label; false if it has none.
func (a LabelArray) Prefix() (netip.Prefix, bool) {
	for _, l := range a {
		if p, ok := l.Prefix(); ok {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// WorldLabel returns reserved:world-ipv4 or reserved:world-ipv6, by the family
// of the address.
func WorldLabel(a netip.Addr) Label {
	if a.Unmap().Is4() {
		return Reserved(NameWorldIPv4)
	}
	return Reserved(NameWorldIPv6)
}
