package node

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// setNode writes kernel settings of the node's namespace.
func setNode(t *testing.T, b *box.Box, settings map[string]string) {
	t.Helper()
	err := b.Node().Do(func() error {
		for name, value := range settings {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func getNode(t *testing.T, b *box.Box, name string) (value string) {
	t.Helper()
	err := b.Node().Do(func() error {
		data, err := os.ReadFile("/proc/sys/net/" + name)
		value = strings.TrimSpace(string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// An outsider who writes the node's address, or a pod's, into his packets, or who
// gets the node's by masquerading, is the world, whatever the reverse path filter;
// the node itself is the host.
func TestN04WhereAPacketCameFrom(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("nft"))
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{abroad}, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "shut", "", "") + box.PodYAML("x", "open", "", "") + box.PodYAML("x", "peer", "", ""),
		"policies.yaml": isolate("shut", "policyTypes: [Ingress]") + ciliumYAML("world", "open", "ingress: [{fromEntities: [world]}]"),
	}})
	ports := []lab.Port{http80, udp53}
	shut, open := b.Add(lab.Pod{Namespace: "x", Name: "shut", Ports: ports}), b.Add(lab.Pod{Namespace: "x", Name: "open", Ports: ports})
	peer := b.Add(lab.Pod{Namespace: "x", Name: "peer", Ports: ports})
	outside := b.Record.Hosts[0]
	b.InForce(2)
	atShut, atOpen := newTap(t, shut.Netns, "eth0"), newTap(t, open.Netns, "eth0")

	var rules strings.Builder
	rules.WriteString("table inet portmap {\nchain pre { type nat hook prerouting priority dstnat; policy accept;\n")
	for port, p := range map[uint16]*lab.AttachedPod{9080: shut, 9081: open} {
		for _, a := range p.Addresses {
			family := map[bool]string{true: "ip", false: "ip6"}[a.Is4()]
			to := netip.AddrPortFrom(a, 80)
			fmt.Fprintf(&rules, "meta nfproto %s tcp dport %d dnat %s to %s\n", map[string]string{"ip": "ipv4", "ip6": "ipv6"}[family], port, family, to)
		}
	}
	rules.WriteString("}\nchain post { type nat hook postrouting priority srcnat; policy accept;\noifname \"lxc*\" ct status dnat masquerade\n}\n}\n")

	translate(t, b.Node(), rules.String())
	for i, all := range []string{"0", "1", "2"} {
		setNode(t, b, map[string]string{"ipv4/conf/all/rp_filter": all, "ipv4/conf/out0/rp_filter": "0", "ipv4/conf/out0/accept_local": "1"})
		for f, dst := range shut.Addresses {
			node, world := nodeOf(b, dst), outside.Addresses[f]
			openAddr, peerAddr := open.Addresses[f], peer.Addresses[f]
			what := fmt.Sprintf("rp_filter %s, %s", all, dst)

			// kubelet-like probes
			for _, port := range ports {
				for _, p := range []*lab.AttachedPod{shut, open} {
					if err := b.Try(b.Node(), node, p.Addresses[f], port); err != nil {
						t.Errorf("%s: the node to %s %s/%d: %v", what, p.Name, port.Proto, port.Port, err)
					}
				}
			}
			// DNAT and masquerade
			for _, from := range []lab.Source{hostSource(outside), podSource(peer)} {
				if err := b.Try(from.Netns, from.Addrs[f], node, lab.Port{Proto: types.ProtoTCP, Port: 9080}); err == nil {
					t.Errorf("%s: %s reaches the isolated pod by the node's address", what, from.Name)
				}
				if err := b.Try(from.Netns, from.Addrs[f], node, lab.Port{Proto: types.ProtoTCP, Port: 9081}); err != nil {
					t.Errorf("%s: %s by the node's address to the pod that admits the world: %v", what, from.Name, err)
				}
			}
			// forged by the outsider
			forger, before := uint16(20000+100*i), drops(t, b)[drop.ForgedPod][0]
			send := func(src, to netip.Addr) func(seen) bool {
				forger++
				s, d := netip.AddrPortFrom(src, forger), netip.AddrPortFrom(to, 53)
				put(t, outside.Netns, udpMessage(s, d, []byte("forged")).whole())
				return flow(types.ProtoUDP, s, d)
			}
			asNode, asPeer, asPeerOpen, asNodeOpen := send(node, dst), send(peerAddr, dst), send(peerAddr, openAddr), send(node, openAddr)
			fence(t, b, b.Node(), atShut, netip.AddrPortFrom(node, forger+1), netip.AddrPortFrom(dst, 53))
			fence(t, b, outside.Netns, atOpen, netip.AddrPortFrom(world, forger+2), netip.AddrPortFrom(openAddr, 53))
			if n := len(atShut.all(t, asNode)); n != 0 {
				t.Errorf("%s: %d packets with the node's address reached the isolated pod from outside", what, n)
			}
			if n := len(atShut.all(t, asPeer)) + len(atOpen.all(t, asPeerOpen)); n != 0 {
				t.Errorf("%s: %d packets with a pod's address reached a pod from outside", what, n)
			}
			// Whoever masquerades elsewhere looks like this. (A strict filter drops it before.)
			if n := len(atOpen.all(t, asNodeOpen)); n != 1 && !(all == "1" && dst.Is4()) {
				t.Errorf("%s: %d packets with the node's address reached the pod that admits the world, want 1", what, n)
			}
			if n := drops(t, b)[drop.ForgedPod][0] - before; n != 2 && !(all == "1" && dst.Is4()) {
				t.Errorf("%s: %d drops of forged pod addresses, want 2", what, n)
			}
		}
		if got := getNode(t, b, "ipv4/conf/all/rp_filter"); got != all {
			t.Errorf("the reverse path filter of all interfaces was %s and is %s", all, got)
		}
	}
}

// nodeOf is the node's address towards the outside of the family of an address.
func nodeOf(b *box.Box, a netip.Addr) netip.Addr {
	for _, n := range nodeEnd(b).Addrs[len(b.Record.NodeAddrs):] {
		if n.Is4() == a.Is4() {
			return n
		}
	}
	return netip.Addr{}
}
