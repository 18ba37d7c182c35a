package lint

import (
	"net/netip"
	"strings"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
)

// selectors finds selectors that contradict themselves.
func (l *linter) selectors(p part) {
	const fix = "ask for one of the two"
	if key := contradiction(p.policy.Subject); key != "" {
		l.report(p, Contradiction, p.subjectPath(), fix, "no value of the label %s is what the selector asks for, so the policy governs no pod", plain(key))
		for _, r := range p.rules {
			l.dead[r.Ref.Key()] = true
		}
	}
	for _, r := range p.rules {
		for i, peer := range r.Peers {
			if peer.Labels == nil {
				continue
			}
			if key := contradiction(*peer.Labels); key != "" {
				l.dead[r.Ref.Key()] = true
				l.report(p, Contradiction, p.peerPath(r, i), fix, "no value of the label %s is what the selector asks for, so the peer is nobody", plain(key))
			}
		}
	}
}

// plain is a label's key as authors write it.
func plain(key string) string {
	if rest, ok := strings.CutPrefix(key, labels.KeyNamespaceLabels+"."); ok {
		return rest + " of the namespace"
	}
	return key
}

// blocks checks the CIDR peers of a policy.
func (l *linter) blocks(p part) {
	for _, r := range p.rules {
		for i, peer := range r.Peers {
			c := peer.CIDR
			if c == nil {
				continue
			}
			if covered(c.Prefix, c.Except) {
				l.dead[r.Ref.Key()] = true
				l.report(p, NothingLeft, p.peerPath(r, i), "take an except out, or the block", "the excepts cover the whole of %s, so the block is nobody", c.Prefix)
				continue
			}
			if who, n := l.inhabitants(c); n > 0 && !c.Pods {
				l.dead[r.Ref.Key()] = true
				l.report(p, CIDROfPods, p.peerPath(r, i), "select pods by their labels and nodes by entities",
					"%s holds addresses of the cluster (%s), and a CIDR of this kind of policy matches addresses outside only", c.Prefix, who)
			}
		}
	}
}

// covered reports whether the excepts leave nothing of the block.
func covered(block netip.Prefix, excepts []netip.Prefix) bool {
	inside := false
	for _, e := range excepts {
		if e = labels.CanonicalPrefix(e); e.Bits() <= block.Bits() && e.Contains(block.Addr()) {
			return true
		}
		inside = inside || block.Contains(e.Addr())
	}
	if !inside || block.Bits() == block.Addr().BitLen() {
		return false
	}
	low, high := halves(block)
	return covered(low, excepts) && covered(high, excepts)
}

func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(p.Addr(), bits), netip.PrefixFrom(a, bits)
}

// inhabitants names a pod or node whose address the block holds, and counts
// them, if the block lies within the smallest prefix around all pods' addresses
// of its family or is one node's address: then nothing outside is meant.
func (l *linter) inhabitants(c *types.CIDRPeer) (who string, n int) {
	if around := l.known.around[c.Prefix.Addr().Is4()]; around.IsValid() && around.Bits() <= c.Prefix.Bits() {
		if pod, n := l.known.inside(c.Prefix); n > 0 {
			return l.world.Pods[pod].Name, n
		}
	}
	if c.Prefix.IsSingleIP() {
		if node, ok := l.known.nodes[c.Prefix.Addr()]; ok {
			return node, 1
		}
	}
	return "", 0
}

// widen returns the smallest prefix around p and a; p may be invalid.
func widen(p netip.Prefix, a netip.Addr) netip.Prefix {
	if !p.IsValid() {
		return netip.PrefixFrom(a, a.BitLen())
	}
	for !p.Contains(a) {
		p = netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
	}
	return p
}
