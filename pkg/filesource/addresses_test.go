package filesource

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const podAt = `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: x, labels: {app: a}}
spec: {hostNetwork: %v, containers: [{name: c, image: i}]}
status: {podIPs: [%s]}
---
`

const twoNodes = `apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: '2001:db8::1'}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
`

func TestN55AnAddressThatNoPodHasIsNotTakenFromItsObject(t *testing.T) {
	s, _, tables, dir := newSource(t)
	ip := func(list ...string) (out string) {
		for i, a := range list {
			if i > 0 {
				out += ", "
			}
			out += "{ip: '" + a + "'}"
		}
		return out
	}
	foreign := []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "127.0.0.1", "::1", "169.254.1.1", "fe80::9", "224.0.0.1", "ff02::1", "0.0.0.0", "::", "255.255.255.255", "::ffff:192.0.2.2"}
	text := fmt.Sprintf(podAt, "host", true, ip("192.0.2.1", "2001:db8::1")) + fmt.Sprintf(podAt, "honest", false, ip("10.0.0.9", "fd00::9"))
	for i, a := range foreign {
		text += fmt.Sprintf(podAt, fmt.Sprintf("liar-%d", i), false, ip(a, fmt.Sprintf("10.0.1.%d", i+1)))
	}
	put(t, dir, "a-pods.yaml", text)
	put(t, dir, "z-nodes.yaml", twoNodes)
	scan(t, s)

	ips := map[string][]netip.Addr{}
	for p := range tables.Pods.All(tables.DB.ReadTxn()) {
		ips[p.Name] = p.IPs
	}
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, ips["host"])
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")}, ips["honest"])
	var told []string
	for _, p := range s.Problems() {
		require.True(t, p.Warning, p.String())
		told = append(told, p.String())
	}
	require.Len(t, told, len(foreign))
	for i, a := range foreign {
		require.Equal(t, []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.0.1.%d", i+1))}, ips[fmt.Sprintf("liar-%d", i)], a)
		require.Contains(t, told[i], "status.podIPs: "+netip.MustParseAddr(a).Unmap().String()+" is ")
		require.True(t, strings.HasSuffix(told[i], fmt.Sprintf("(Pod x/liar-%d)", i)), told[i])
	}
	require.Contains(t, told[1], "node n2")

	// A Node that comes later takes its address from the pod that said to have it.
	put(t, dir, "late.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n3}\nstatus: {addresses: [{type: InternalIP, address: 10.0.0.9}]}\n")
	scan(t, s)
	for p := range tables.Pods.All(tables.DB.ReadTxn()) {
		if p.Name == "honest" {
			require.Equal(t, []netip.Addr{netip.MustParseAddr("fd00::9")}, p.IPs)
		}
	}
}
