package testfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

const good = `apiVersion: weir.net/v1
kind: PolicyTest
metadata: {name: shop}
namespaces:
  - {name: lab, labels: {team: lab}}
pods:
  - {namespace: lab, name: probe, labels: {app: probe}, serviceAccount: robot, addresses: [10.1.0.1, "fd01::1"], ports: [{name: dns, port: 53, protocol: UDP}]}
outside:
  - {name: customer, addresses: [203.0.113.10]}
expect:
  - {from: lab/probe, to: customer, port: 443, verdict: allow}
  - from: [lab/probe, customer]
    to: [shop/db, 10.9.9.9]
    port: [sql, 53/UDP, 443]
    verdict: deny
    family: IPv4
    rule: NetworkPolicy shop/db
`

func read(text string) (*File, error) {
	docs, err := k8s.Split([]byte(text), "dir/shop_test.yaml")
	if err != nil {
		return nil, err
	}
	return Read(docs[0])
}

func TestATestIsReadWithTheLinesOfItsExpectations(t *testing.T) {
	f, err := read(good)
	require.NoError(t, err)
	require.Equal(t, "shop", f.Name)
	require.Equal(t, "dir/shop_test.yaml", f.Path)
	require.Equal(t, map[string]map[string]string{"lab": {"team": "lab"}}, f.Namespaces)
	require.Equal(t, "lab/probe", f.Pods[0].Key())
	require.Equal(t, "robot", f.Pods[0].ServiceAccount)
	require.Len(t, f.Pods[0].Addrs, 2)
	require.Equal(t, wtypes.ProtoUDP, f.Pods[0].Ports[0].Proto)
	require.Equal(t, "customer", f.Hosts[0].Name)
	require.Len(t, f.Expectations, 1+2*2*3)
	require.Equal(t, Expectation{Line: 11, From: "lab/probe", To: "customer", Port: "443", Verdict: types.Allow}, f.Expectations[0])
	require.Equal(t, Expectation{Line: 12, From: "customer", To: "10.9.9.9", Port: "443", Family: IPv4, Rule: "NetworkPolicy shop/db"}, f.Expectations[12])
}

func TestWhatIsWrongIsSaidWithItsLine(t *testing.T) {
	for what, c := range map[string]struct{ old, now, want string }{
		"another version":            {"weir.net/v1", "weir.net/v2", `dir/shop_test.yaml:1: apiVersion: "weir.net/v2" is not known for this kind; give weir.net/v1`},
		"no name":                    {"{name: shop}", "{}", "metadata.name: is missing"},
		"a field that is none":       {"verdict: allow", "verdikt: allow", "dir/shop_test.yaml:11: expect[0].verdikt: is not a field that exists here; did you mean verdict?"},
		"a field twice":              {"    verdict: deny", "    verdict: deny\n    verdict: allow", "dir/shop_test.yaml:16: expect[1].verdict: is given twice"},
		"a verdict that is none":     {"verdict: allow", "verdict: maybe", `dir/shop_test.yaml:11: expect[0].verdict: "maybe" is not known; give allow or deny`},
		"no verdict":                 {", verdict: allow", "", `dir/shop_test.yaml:11: expect[0].verdict: "" is not known`},
		"a family that is none":      {"family: IPv4", "family: v4", `dir/shop_test.yaml:16: expect[1].family: "v4" is not known`},
		"no source":                  {"from: lab/probe, to", "to", "dir/shop_test.yaml:11: expect[0].from: is missing; give a pod"},
		"an empty list":              {"from: [lab/probe, customer]", "from: []", "dir/shop_test.yaml:12: expect[1].from: is missing"},
		"a source that is no text":   {"from: lab/probe, to", "from: {pod: lab/probe}, to", "dir/shop_test.yaml:11: expect[0].from: is no text"},
		"a member that is no text":   {"to: [shop/db, ", "to: [true, ", "dir/shop_test.yaml:13: expect[1].to: is no text"},
		"no port":                    {", port: 443", "", "dir/shop_test.yaml:11: expect[0].port: is missing; give a number or name"},
		"a port out of range":        {"port: 443,", "port: 65536,", `dir/shop_test.yaml:11: expect[0].port: port "65536" is out of range; give 1 to 65535`},
		"port 0":                     {"port: 443,", "port: 0,", `port "0" is out of range`},
		"a negative port":            {"port: 443,", "port: -1,", "dir/shop_test.yaml:11: expect[0].port: is no text"},
		"a protocol that is none":    {"53/UDP,", "53/UPD,", `dir/shop_test.yaml:14: expect[1].port: port "53/UPD": "UPD" is not known; give TCP, UDP or SCTP`},
		"a port of ICMP":             {"53/UDP,", "8/ICMP,", `"ICMP" is not known; give TCP, UDP or SCTP`},
		"nothing expected":           {good[strings.Index(good, "expect:"):], "", "expect: is empty; a test that expects nothing shows nothing"},
		"a pod without a namespace":  {"{namespace: lab, name: probe", "{name: probe", "dir/shop_test.yaml:7: pods[0]: needs a namespace and a name"},
		"a pod's address":            {"10.1.0.1", "10.1.0", `dir/shop_test.yaml:7: pods[0].addresses[0]: "10.1.0" is not an IP address`},
		"a pod's port out of range":  {"port: 53", "port: 65536", "dir/shop_test.yaml:7: pods[0].ports[0].port: 65536 is not a port; give 1 to 65535"},
		"a pod's port that is text":  {"port: 53", "port: dns", `pods[0].ports[0].port: is the text "dns"; give a whole number`},
		"a pod's protocol":           {"protocol: UDP", "protocol: ICMP", `pods[0].ports[0].protocol: "ICMP" is not known`},
		"a host without an address":  {"addresses: [203.0.113.10]", "addresses: []", "dir/shop_test.yaml:9: outside[0]: needs a name and addresses"},
		"a host's address with zone": {"203.0.113.10", "fe80::1%eth0", `outside[0].addresses[0]: "fe80::1%eth0" is not an IP address`},
		"a namespace without a name": {"{name: lab, labels", "{labels", "dir/shop_test.yaml:5: namespaces[0].name: is missing"},
		"a label that is no text":    {"{team: lab}", "{team: yes}", "namespaces[0].labels.team: is not text for every reader"},
	} {
		t.Run(what, func(t *testing.T) {
			text := strings.Replace(good, c.old, c.now, 1)
			require.NotEqual(t, good, text)
			_, err := read(text)
			require.Error(t, err)
			require.Contains(t, strings.ReplaceAll(err.Error(), "PolicyTest shop: ", ""), c.want)
		})
	}
}

func TestEverythingWrongIsSaidAtOnce(t *testing.T) {
	_, err := read(strings.NewReplacer("verdict: allow", "verdict: a", "family: IPv4", "family: b", "10.1.0.1", "c").Replace(good))
	for _, want := range []string{`"a" is not known`, `"b" is not known`, `"c" is not an IP address`} {
		require.ErrorContains(t, err, want)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(good)
	f.Add("apiVersion: weir.net/v1\nkind: PolicyTest\nexpect: [{from: [[a]], to: 1.5, port: null}]")
	f.Fuzz(func(t *testing.T, text string) {
		docs, _ := k8s.Split([]byte(text), "f")
		for _, d := range docs {
			file, err := Read(d)
			if err == nil && len(file.Expectations) == 0 {
				t.Fatal("a test without an expectation was taken")
			}
		}
	})
}

func TestATextThatMayHoldATestIsRead(t *testing.T) {
	require.False(t, MayHold([]byte("kind: NetworkPolicy\n")))
	for _, text := range []string{"kind: PolicyTest\n", `kind: "Policy\x54est"`, "k\x00i\x00n\x00d\x00:\x00"} {
		require.True(t, MayHold([]byte(text)), text)
	}
}
