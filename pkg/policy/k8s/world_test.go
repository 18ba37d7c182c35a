package k8s

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/oracle"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

const cluster = "blue-7"

// The addresses of the tests' world: web and db in shop, ops in admin, the local
// node, another node, and two hosts outside.
var addrs = map[string]string{
	"web": "10.42.1.2", "db": "10.42.1.3", "ops": "10.42.2.2", "host": "192.0.2.1", "node": "192.0.2.2",
	"out10": "203.0.113.10", "out200": "203.0.113.200", "web6": "fd00::2", "out6": "2001:db8::10", "out6b": "2001:db8::c8",
}

func world() *oracle.World {
	pod := func(name, ns, team string, ports types.NamedPorts, a ...string) oracle.Pod {
		p := oracle.Pod{Name: name, NamedPorts: ports, Labels: labels.PodLabels(labels.Pod{
			Namespace: ns, Cluster: cluster, Labels: map[string]string{"app": name}, NamespaceLabels: map[string]string{"team": team}})}
		for _, s := range a {
			p.Addrs = append(p.Addrs, netip.MustParseAddr(s))
		}
		return p
	}
	node := func(local bool, a string) oracle.Node {
		return oracle.Node{Local: local, Addrs: []netip.Addr{netip.MustParseAddr(a)}}
	}
	return &oracle.World{
		Pods: []oracle.Pod{
			pod("web", "shop", "red", types.NamedPorts{{Name: "http", Proto: wtypes.ProtoTCP}: 8080}, addrs["web"], addrs["web6"]),
			pod("db", "shop", "red", nil, addrs["db"]),
			pod("ops", "admin", "blue", nil, addrs["ops"]),
		},
		Nodes: []oracle.Node{node(true, addrs["host"]), node(false, addrs["node"])},
	}
}

func translate(text string) ([]*types.Policy, error) {
	objects, err := Decode([]byte(text), "p.yaml")
	if err != nil {
		return nil, err
	}
	return TranslateAll(objects, Options{ClusterName: cluster})
}

func policies(t *testing.T, text string) []*types.Policy {
	t.Helper()
	ps, err := translate(text)
	require.NoError(t, err)
	return ps
}

// flow is a connection and whether it may pass.
type flow struct {
	from, to string
	port     string // "TCP/80"
	allowed  bool
}

// check asks the oracle about each flow, with and without a cluster name: what
// the one requirement keeps out must not hide that another one is missing.
func check(t *testing.T, text string, flows ...flow) {
	t.Helper()
	for _, name := range []string{cluster, ""} {
		objects, err := Decode([]byte(text), "p.yaml")
		require.NoError(t, err)
		ps, err := TranslateAll(objects, Options{ClusterName: name})
		require.NoError(t, err)
		ask(t, ps, flows)
	}
}

func ask(t *testing.T, ps []*types.Policy, flows []flow) {
	t.Helper()
	for _, f := range flows {
		name, number, _ := strings.Cut(f.port, "/")
		proto, err := wtypes.ParseProto(name)
		require.NoError(t, err)
		port, err := strconv.ParseUint(number, 10, 16)
		require.NoError(t, err)
		v := oracle.Judge(world(), ps, types.ModeDefault, oracle.Connection{
			Src: netip.MustParseAddr(addrs[f.from]), Dst: netip.MustParseAddr(addrs[f.to]), Proto: proto, Port: uint16(port)})
		require.Equal(t, f.allowed, v.Allowed(), "%s -> %s %s: egress %s, ingress %s", f.from, f.to, f.port, v.Egress.Ref, v.Ingress.Ref)
	}
}
