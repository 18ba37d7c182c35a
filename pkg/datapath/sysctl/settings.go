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
		out = append(out, Setting{"net/ipv4/ip_forward", "1", "traffic between pods and the outside goes through the node's routing"})
	}
	if ipv6 {
		out = append(out, Setting{"net/ipv6/conf/all/forwarding", "1", "as ip_forward; see ApplyNode for what it costs"})
	}
	return out
}

// allRPFilter is the reverse path filter that holds for every interface whose own
// one is a smaller number.
const allRPFilter = "net/ipv4/conf/all/rp_filter"

// SetVeth gives the host side of a pod's veth its settings.
func SetVeth(ifname string, ipv4, ipv6 bool) error {
	all := "0"
	if ipv4 {
		var err error
		if all, err = (&Changes{root: procSys}).read(allRPFilter); err != nil {
			return err
		}
	}
	return Set(VethSettings(ifname, all, ipv4, ipv6))
}

// VethSettings is what the host side of a pod's veth gets where the reverse path
// filter of all interfaces is allRPFilter. They vanish with it.
func VethSettings(ifname, allRPFilter string, ipv4, ipv6 bool) []Setting {
	var out []Setting
	if ipv4 {
		filter := "0"
		if allRPFilter == "1" { // strict; the greater of both numbers counts, and 2 is loose
			filter = "2"
		}
		out = append(out, Setting{"net/ipv4/conf/" + ifname + "/rp_filter", filter, "a pod's source address is checked by the program on its interface, and replies may take another way than the route to the pod"})
	}
	if ipv6 {
		out = append(out,
			Setting{"net/ipv6/conf/" + ifname + "/addr_gen_mode", "1", "the host side has no address"},
			Setting{"net/ipv6/conf/" + ifname + "/accept_dad", "0", "nobody else is on the wire"},
		)
	}
	return out
}
