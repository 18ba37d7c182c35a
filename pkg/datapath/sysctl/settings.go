package sysctl

// Setting is one file under /proc/sys and its wanted value.
type Setting struct {
	Name  string // path below /proc/sys, for example net/ipv4/ip_forward
	Value string
	Why   string // for people
}

// NodeSettings is what Weir changes on the node outside its own devices, beside
// accept_ra of links (ApplyNode).
func NodeSettings(ipv4, ipv6 bool) []Setting {
	var out []Setting
	if ipv4 {
		out = append(out,
			Setting{"net/ipv4/ip_forward", "1", "traffic between pods and the outside goes through the node's routing"},
			// The stricter of "all" and the interface's own counts, so the veths' own 0 needs this one too.
			Setting{"net/ipv4/conf/all/rp_filter", "0", "a pod's source address is checked by the program on its interface; interfaces keep their own setting"},
		)
	}
	if ipv6 {
		out = append(out, Setting{"net/ipv6/conf/all/forwarding", "1", "as ip_forward; see ApplyNode for what it costs"})
	}
	return out
}

// VethSettings is what the host side of a pod's veth gets. They vanish with it.
func VethSettings(ifname string, ipv4, ipv6 bool) []Setting {
	var out []Setting
	if ipv4 {
		out = append(out, Setting{"net/ipv4/conf/" + ifname + "/rp_filter", "0", "replies may take another way than the route to the pod"})
	}
	if ipv6 {
		out = append(out,
			Setting{"net/ipv6/conf/" + ifname + "/addr_gen_mode", "1", "the host side has no address"},
			Setting{"net/ipv6/conf/" + ifname + "/accept_dad", "0", "nobody else is on the wire"},
		)
	}
	return out
}
