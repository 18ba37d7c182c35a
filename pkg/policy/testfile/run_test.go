package testfile

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// shop is a world of a web pod, an api pod that only web may reach on http, and
// a block that may reach web over IPv4 alone.
func shop() simulate.Sketch {
	app := func(name string) labels.Selector {
		return labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: "app", Operator: labels.In, Values: []string{name}})
	}
	policy := func(name string, peer types.Peer, ports ...types.Port) *types.Policy {
		p := &types.Policy{Resource: types.Resource{Kind: "NetworkPolicy", Namespace: "shop", Name: name, File: "p.yaml", Line: 1}, Subject: app(name), IsolatesIngress: true}
		p.Rules = []types.Rule{{Ref: types.RuleRef{Resource: p.Resource, Section: types.SectionIngress, Line: 7}, Verdict: types.Allow, Peers: []types.Peer{peer}, Ports: ports}}
		return p
	}
	web := app("web")
	http := []simulate.Port{{Name: "http", Proto: wtypes.ProtoTCP, Port: 8080}}
	return simulate.Sketch{
		Cluster: "default",
		Pods: []simulate.SketchedPod{
			{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}, Ports: http},
			{Namespace: "shop", Name: "api", Labels: map[string]string{"app": "api"}, Ports: http},
			{Namespace: "ops", Name: "web", Labels: map[string]string{"app": "ops"}},
			{Namespace: "ops", Name: "old", Labels: map[string]string{"app": "old"}, Addrs: []netip.Addr{netip.MustParseAddr("10.3.0.1")}},
		},
		Hosts: []simulate.SketchedHost{{Host: simulate.Host{Name: "customer", Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")}}}},
		Policies: []*types.Policy{
			policy("api", types.Peer{Labels: &web}, types.Port{Proto: wtypes.ProtoTCP, Name: "http"}),
			policy("web", types.Peer{CIDR: &types.CIDRPeer{Prefix: netip.MustParsePrefix("203.0.113.0/24"), Pods: true}}),
		},
	}
}

// run asks one expectation, written as in a file.
func run(t *testing.T, expectation string) Asked {
	t.Helper()
	f, err := read("apiVersion: weir.net/v1\nkind: PolicyTest\nmetadata: {name: t}\nexpect:\n  - {" + expectation + "}\n")
	require.NoError(t, err)
	asked, _, err := f.Run(shop())
	require.NoError(t, err)
	require.Len(t, asked, 1)
	return asked[0]
}

func TestExpectationsThatAreMet(t *testing.T) {
	for _, e := range []string{
		"from: shop/web, to: api, port: http, verdict: allow",
		"from: shop/web, to: api, port: 8080, verdict: allow, rule: NetworkPolicy shop/api",
		`from: shop/web, to: api, port: 8080, verdict: allow, rule: "NetworkPolicy shop/api ingress[0]"`,
		"from: shop/web, to: api, port: 8080, verdict: allow, rule: not isolated", // the source's half
		"from: ops/web, to: api, port: http, verdict: deny, rule: default deny",
		"from: ops/web, to: api, port: 80, verdict: deny, rule: NetworkPolicy shop/api",
		"from: customer, to: shop/web, port: 1/SCTP, verdict: allow, family: IPv4",
		"from: customer, to: shop/web, port: 1, verdict: deny, family: IPv6",
		"from: 203.0.113.99, to: shop/web, port: ICMP, verdict: allow",
		"from: 198.51.100.1, to: shop/web, port: ICMP, verdict: deny",
		"from: 2001:db8::10, to: shop/web, port: ICMP, verdict: deny",
		"from: node, to: api, port: 1, verdict: allow, rule: the local node may always reach its pods",
		"from: api, to: 192.0.2.1, port: 1, verdict: allow",
	} {
		a := run(t, e)
		require.True(t, a.Passed(), "%s: %s", e, a.Detail())
	}
}

func TestExpectationsThatAreNotMetSayWhy(t *testing.T) {
	for e, want := range map[string]string{
		"from: shop/web, to: api, port: http, verdict: deny": "IPv4: expected deny, got allow\nshop/web -> shop/api 8080/TCP: allow\n" +
			"  egress of shop/web: allow by default allow, because no policy selects the pod in this direction\n" +
			"    would be deny with a policy that isolates shop/web and does not allow this\n  ingress of shop/api: allow by NetworkPolicy shop/api ingress[0] (p.yaml:7)",
		"from: ops/web, to: api, port: http, verdict: allow": "would be allow with label app=web on ops/web",
		"from: shop/web, to: api, port: http, verdict: allow, rule: NetworkPolicy shop/ap": `IPv4: expected a decision by "NetworkPolicy shop/ap", got default allow, because no policy selects the pod in this direction and ` +
			"NetworkPolicy shop/api ingress[0] (p.yaml:7)",
		`from: shop/web, to: api, port: 8080, verdict: allow, rule: "NetworkPolicy shop/api ingress[1]"`: `expected a decision by "NetworkPolicy shop/api ingress[1]"`,
		// The denial is not made by the end that allows.
		"from: ops/web, to: api, port: http, verdict: deny, rule: not isolated": `expected a decision by "not isolated", got default deny`,
		// One family of two differs.
		"from: customer, to: shop/web, port: 1, verdict: allow": "IPv6: expected allow, got deny",
		"from: customer, to: shop/web, port: 1, verdict: deny":  "IPv4: expected deny, got allow",
	} {
		a := run(t, e)
		require.False(t, a.Passed(), e)
		require.Contains(t, a.Detail(), want, e)
		require.False(t, a.Case("f").Broken, e)
	}
}

func TestWhatCannotBeAskedIsAFailureToo(t *testing.T) {
	for e, want := range map[string]string{
		"from: shop/wep, to: api, port: 1, verdict: deny":                    `there is no pod, host or address "shop/wep"; there are shop/web, shop/api`,
		"from: web, to: api, port: 1, verdict: deny":                         `"web" may be shop/web or ops/web; write NAMESPACE/NAME`,
		"from: api, to: nobody, port: 1, verdict: deny":                      `there is no pod, host or address "nobody"`,
		"from: shop/web, to: api, port: sql, verdict: deny":                  `shop/api gives no TCP port the name "sql"`,
		"from: shop/web, to: api, port: http/UDP, verdict: deny":             `shop/api gives no UDP port the name "http"`,
		"from: api, to: customer, port: http, verdict: deny":                 `customer gives no TCP port the name "http"`,
		"from: api, to: api, port: 1, verdict: deny":                         "shop/api to itself passes no policy",
		"from: customer, to: 192.0.2.9, port: 1, verdict: deny":              "neither customer nor 192.0.2.9 is a pod",
		"from: ops/old, to: 2001:db8::1, port: 1, verdict: deny":             "have no address of one family",
		"from: ops/old, to: api, port: 1, verdict: deny, family: IPv6":       "have no address of one family",
		"from: ops/old, to: 10.77.0.3, port: 1, verdict: deny, family: IPv6": "have no address of one family",
		"from: api, to: 198.51.100.1, port: https, verdict: deny":            `198.51.100.1 gives no TCP port the name "https"`,
	} {
		a := run(t, e)
		require.Contains(t, a.Problem, want, e)
		require.True(t, a.Case("f").Broken, e)
	}
}

func TestATestBringsItsOwnWorld(t *testing.T) {
	f, err := read(`{apiVersion: weir.net/v1, kind: PolicyTest, metadata: {name: t},
pods: [{namespace: shop, name: api-2, labels: {app: api}, ports: [{name: http, port: 81}]}, {namespace: lab, name: web, labels: {app: web}}],
namespaces: [{name: lab, labels: {team: lab}}], outside: [{name: far, addresses: [203.0.113.200]}],
expect: [{from: [far, customer], to: shop/web, port: 5, verdict: allow, family: IPv4}, {from: lab/web, to: api-2, port: http, verdict: allow}]}`)
	require.NoError(t, err)
	before := shop()
	asked, c, err := f.Run(before)
	require.NoError(t, err)
	for _, a := range asked {
		require.True(t, a.Passed(), a.Detail())
	}
	require.Equal(t, shop(), before, "the folder's world is as it was")
	ends, _ := c.Ends("lab/web")
	team, _ := ends[0].Labels.Get(labels.SourceK8s, labels.KeyNamespaceLabels+".team")
	require.Equal(t, "lab", team)

	f.Pods[1].Name, f.Pods[1].Namespace = "web", "shop"
	_, _, err = f.Run(before)
	require.ErrorContains(t, err, "shop/web is there twice")
}

// report has a case that passed, one that failed and one that is broken, with
// everything that XML and TAP could stumble over.
func report(t *testing.T) Report {
	ask := func(e string) Case { return run(t, e).Case("dir/<a>&_test.yaml") }
	return Report{
		Started: time.Date(2026, 2, 3, 4, 5, 6, 7, time.FixedZone("", 3600)), Host: "box",
		Suites: []Suite{
			{Name: `shop "<1>" # & co`, Path: "dir/<a>&_test.yaml", Took: 1500 * time.Microsecond, Cases: []Case{
				ask("from: shop/web, to: api, port: http, verdict: allow"), ask("from: ops/web, to: api, port: http, verdict: allow"),
				ask("from: ops/web, to: nobody, port: http, verdict: allow"), {Name: "bell \a", Problem: "\x1b[1m", Detail: "two\nlines \x00"},
			}},
			Broken("b_test.yaml", "dir/b_test.yaml", os.ErrNotExist),
			{Name: "empty", Path: "e"},
		},
	}
}

// The schema is written down from how readers of the format describe it: the
// strict ones ask for every attribute and element that it asks for.
func TestJUnitIsValid(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, report(t).JUnit(&b))
	path := filepath.Join(t.TempDir(), "junit.xml")
	validate := func(text string) (string, error) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		out, err := exec.Command("xmllint", "--noout", "--nonet", "--schema", "testdata/junit.xsd", path).CombinedOutput()
		return string(out), err
	}
	if _, err := exec.LookPath("xmllint"); err != nil {
		t.Fatalf("%v; install the packages of the Makefile with: make deps", err)
	}
	out, err := validate(b.String())
	require.NoError(t, err, "%s\n%s", out, b.String())
	for _, part := range []string{
		`<testsuite id="0" name="shop &#34;&lt;1&gt;&#34; # &amp; co" package="dir/&lt;a&gt;&amp;_test.yaml" timestamp="2026-02-03T03:05:06" hostname="box" tests="4" failures="2" errors="1" time="0.002">`,
		`<failure message="IPv4: expected allow, got deny" type="verdict">dir/&lt;a&gt;&amp;_test.yaml:5`,
		"would be allow with label app=web on ops/web", `<error message="there is no pod, host or address`,
		`<testsuite id="1" name="b_test.yaml" package="dir/b_test.yaml" timestamp="2026-02-03T03:05:06" hostname="box" tests="1" failures="0" errors="1"`,
	} {
		require.Contains(t, b.String(), part)
	}
	for _, c := range [][2]string{{`tests="4"`, ""}, {`failures="2"`, `failures="two"`}, {"<properties></properties>", ""}, {"classname", "class"}, {"<testsuites>", "<testsuites><x/>"}, {"timestamp=\"2026-02-03T", "timestamp=\"2026-02-03 "}} {
		bad := strings.Replace(b.String(), c[0], c[1], 1)
		require.NotEqual(t, b.String(), bad, c[0])
		out, err := validate(bad)
		require.Error(t, err, "the schema takes %q for %q: %s", c[1], c[0], out)
	}
}

func TestTAP(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, report(t).TAP(&b))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Equal(t, []string{"TAP version 13", "1..5", `ok 1 - shop "<1>" \# & co: shop/web -> api:http is allow`, `not ok 2 - shop "<1>" \# & co: ops/web -> api:http is allow`,
		"  ---", `  at: "dir/<a>&_test.yaml:5"`, "  message: |", "    IPv4: expected allow, got deny"}, lines[:8])
	results := 0
	for _, line := range lines[2:] {
		if strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "not ok ") {
			results++
		} else {
			require.True(t, strings.HasPrefix(line, "  "), "%q is neither a result nor belongs to one", line)
		}
	}
	require.Equal(t, 5, results)
	passed, failed := report(t).Count()
	require.Equal(t, []int{1, 4}, []int{passed, failed})
}

// ICMP means an echo request, which each family numbers its own way.
func TestICMPIsAnEchoRequestOfItsFamily(t *testing.T) {
	a := run(t, "from: shop/web, to: ops/web, port: ICMP, verdict: allow")
	require.Len(t, a.Answers, 2)
	v4, v6 := a.Answers[0].Explanation, a.Answers[1].Explanation
	require.Equal(t, wtypes.ProtoICMP, v4.Proto)
	require.EqualValues(t, 8, v4.Port)
	require.Equal(t, wtypes.ProtoICMPv6, v6.Proto)
	require.EqualValues(t, 128, v6.Port)
}
