package cmd

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/policy/simulate"
)

const shop = "../../examples/shop"

// copyShop returns a copy of the example in which one text of a file is another.
func copyShop(t *testing.T, file, old, now string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(shop)))
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, now, 1)), 0o600))
	return dir
}

func TestTheShopKeepsItsPromises(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "test", shop)
	require.Zero(t, code, "%s%s", out, errOut)
	require.Contains(t, out, "38 expectations passed, 0 failed\n")
	require.Contains(t, out, "passed  shop  customer -> shop/frontend:http is allow by NetworkPolicy shop/frontend ingress[0]")
	code, out, _ = runWeir(t, "policy", "test", filepath.Join(shop, "shop_test.yaml"), shop)
	require.Zero(t, code)
	require.Contains(t, out, "76 expectations passed, 0 failed\n")
}

func TestAWrongExpectationFailsWithItsExplanation(t *testing.T) {
	dir := copyShop(t, "shop_test.yaml", "from: api\n    to: db", "from: scanner\n    to: db")
	code, out, errOut := runWeir(t, "policy", "test", dir)
	require.Equal(t, exitNo, code, errOut)
	require.Empty(t, errOut)
	require.Contains(t, out, "37 expectations passed, 1 failed\n")
	require.Contains(t, out, `
  IPv4: expected allow, got deny
  ops/scanner -> shop/db 5432/TCP: deny
    egress of ops/scanner: allow by default allow, because no policy selects the pod in this direction
    ingress of shop/db: deny by CiliumNetworkPolicy shop/operators ingressDeny[0] (`+dir+`/policies.yaml:96)
      lost: allow by CiliumNetworkPolicy shop/operators ingress[0] (`+dir+`/policies.yaml:92), since a deny beats an allow
      isolated by CiliumNetworkPolicy shop/operators, NetworkPolicy shop/db, NetworkPolicy shop/default-deny
      would be allow without label app on ops/scanner
      would be allow without CiliumNetworkPolicy shop/operators ingressDeny[0] (`+dir+`/policies.yaml:96)
`)
	code, out, _ = runWeir(t, "-o", "json", "policy", "test", dir)
	require.Equal(t, exitNo, code)
	var got testResults
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, []int{37, 1}, []int{got.Passed, got.Failed})
	for _, r := range got.Results {
		require.Equal(t, r.Passed, r.Explanations == nil, r.Name)
		if !r.Passed {
			require.Equal(t, "ops/scanner", r.Explanations[0].From.Name)
			require.Equal(t, "app=scanner", strings.TrimPrefix(r.Explanations[0].From.Labels[0], "k8s:"))
			require.Len(t, r.Explanations, 1, "families that agree are one")
		}
	}
}

func TestTestsThatCannotBeRunFail(t *testing.T) {
	for what, c := range map[string]struct{ file, old, now, out, errOut string }{
		"an unknown pod":   {"shop_test.yaml", "from: api\n", "from: apj\n", `there is no pod, host or address "apj"`, ""},
		"an unknown field": {"shop_test.yaml", "verdict: allow", "verdikt: allow", "shop_test.yaml:31: PolicyTest shop: expect[0].verdikt: is not a field that exists here; did you mean verdict?", ""},
		"no YAML":          {"shop_test.yaml", "expect:\n", "expect: {\n", "not readable as YAML", ""},
		"a pod twice":      {"shop_test.yaml", "name: frontend-2", "name: frontend", "shop/frontend is there twice", ""},
		"no test":          {"shop_test.yaml", "kind: PolicyTest", "kind: List\nitems: []", "", "holds no test; write one"},
		"a refused policy": {"policies.yaml", "podSelector: {}", "podSelektor: {}", "", "policies.yaml:8: spec.podSelektor"},
	} {
		code, out, errOut := runWeir(t, "policy", "test", copyShop(t, c.file, c.old, c.now))
		if c.out == "" { // nothing could be judged
			require.Equal(t, exitFailed, code, what)
		} else {
			require.Equal(t, exitNo, code, what)
		}
		require.Contains(t, out, c.out, what)
		require.Contains(t, errOut, c.errOut, what)
		if c.out != "" {
			require.NotContains(t, out, " 0 failed", what)
		}
	}
	code, _, errOut := runWeir(t, "policy", "test", shop, "--policy-enforcement", "sometimes")
	require.Equal(t, exitFailed, code, errOut)
	code, _, _ = runWeir(t, "policy", "test")
	require.Equal(t, exitFailed, code)
	code, _, errOut = runWeir(t, "policy", "test", filepath.Join(t.TempDir(), "none"))
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "no such file")
}

func TestReportsAsJUnitAndTAP(t *testing.T) {
	dir := copyShop(t, "shop_test.yaml", "port: sql\n    verdict: allow", "port: sql\n    verdict: deny")
	file := filepath.Join(t.TempDir(), "junit.xml")
	code, out, errOut := runWeir(t, "policy", "test", dir, "--junit", file, "--tap", "-")
	require.Equal(t, exitNo, code, errOut)
	require.True(t, strings.HasPrefix(out, "TAP version 13\n1..38\nok 1 - shop: "), out)
	require.Equal(t, 1, strings.Count(out, "\nnot ok "))
	require.NotContains(t, out, "expectations passed", "- is the standard output alone")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var junit struct {
		Suite struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Cases    []struct {
				Failure string `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(text, &junit))
	require.Equal(t, []int{38, 1, 38}, []int{junit.Suite.Tests, junit.Suite.Failures, len(junit.Suite.Cases)})
	require.Contains(t, string(text), "shop/api -&gt; shop/db 5432/TCP: allow")
	code, _, errOut = runWeir(t, "policy", "test", shop, "--junit", filepath.Join(t.TempDir(), "none", "junit.xml"))
	require.Equal(t, exitFailed, code, "a report that cannot be written is no success")
	require.Contains(t, errOut, "writing the report")
}

// The lab's table, worked out by hand and proved there with packets.
func TestTheTableOfTheShopIsTheExpectedOne(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "table", shop)
	require.Zero(t, code, errOut)
	got, err := lab.ReadTables(strings.NewReader(out))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(shop, "lab", "expected.txt"))
	require.NoError(t, err)
	want, err := lab.ReadTables(bytes.NewReader(text))
	require.NoError(t, err)
	require.Empty(t, lab.Compare(want, got))

	code, out, _ = runWeir(t, "policy", "table", shop, "--pod", "ops/scanner", "--port", "80", "--port", "53/UDP", "-o", "json")
	require.Zero(t, code)
	var tables []simulate.Table
	require.NoError(t, json.Unmarshal([]byte(out), &tables))
	require.Len(t, tables, 2)
	require.Len(t, tables[0].Rows, 8)
	require.Contains(t, tables[0].Columns, "ops/scanner:53/UDP")
	for _, args := range [][]string{{"--port", "http"}, {"--port", "65536"}, {shop, shop}} {
		code, _, errOut := runWeir(t, append([]string{"policy", "table", shop}, args...)...)
		require.Equal(t, exitFailed, code, errOut)
	}
	code, _, errOut = runWeir(t, "policy", "table", shop, "--pod", "ops/skanner")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, `there is no pod, host or address "ops/skanner"; there are shop/frontend`)
}

func TestExplainWithoutAnAgent(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "explain", "-f", shop, "shop/frontend", "api", "http")
	require.Zero(t, code, errOut)
	require.True(t, strings.HasPrefix(out, "shop/frontend -> shop/api 9000/TCP: allow\n  egress of shop/frontend: allow by NetworkPolicy shop/frontend egress[0] ("+shop+"/policies.yaml:33)\n"), out)
	code, out, _ = runWeir(t, "policy", "explain", "-f", shop, "customer", "db", "sql", "-o", "json", "--family", "IPv6")
	require.Equal(t, exitNo, code)
	var e gen.Explanation
	require.NoError(t, json.Unmarshal([]byte(out), &e))
	require.Equal(t, "2001:db8:113::10", e.From.Address)
	require.Equal(t, gen.VerdictDeny, e.Verdict)
	require.Nil(t, e.Egress)
	require.Equal(t, gen.RuleDefaultDeny, e.Ingress.Rule.Kind)
	require.Zero(t, e.Ingress.Rule.ID, "a simulation's numbers mean nothing")
	require.Len(t, e.Ingress.Isolating, 3)
	require.Equal(t, gen.ChangeRule, e.Ingress.Changes[0].Kind)

	code, out, _ = runWeir(t, "policy", "explain", "-f", shop, "scanner", "api", "1", "-o", "table")
	require.Equal(t, exitNo, code)
	lines := strings.Split(out, "\n")
	require.Regexp(t, `^DIRECTION +ROLE +SAYS +RULE +PLACE +WHY$`, lines[0])
	require.Regexp(t, `^egress +decides +allow +not-isolated +- +-$`, lines[1])
	require.Regexp(t, `^ingress +decides +deny +CiliumNetworkPolicy shop/operators ingressDeny\[0\] +\S+policies.yaml:96 +-$`, lines[2])
	require.Regexp(t, `^ingress +lost +allow +CiliumNetworkPolicy shop/operators ingress\[0\] +\S+policies.yaml:92 +since a deny beats an allow$`, lines[3])
	require.Regexp(t, `^ingress +isolates +- +CiliumNetworkPolicy shop/operators +\S+policies.yaml:84 +-$`, lines[4])
	require.Regexp(t, `^ingress +change +- +- +- +without label app on ops/scanner$`, lines[7])

	code, _, errOut = runWeir(t, "policy", "explain", "-f", shop, "nobody", "api", "1")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, `there is no pod, host or address "nobody"`)
	code, _, errOut = runWeir(t, "policy", "explain", "-f", shop, "scanner", "api", "65536")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "out of range")
}

// Where the families differ both are told apart.
func TestExplainTellsFamiliesApart(t *testing.T) {
	dir := copyShop(t, "policies.yaml", "cidr: 2001:db8:113::/48\n            except: [\"2001:db8:113:bad::/64\"]", "cidr: 2001:db8:114::/48")
	code, out, errOut := runWeir(t, "policy", "explain", "-f", dir, "customer", "shop/frontend", "http")
	require.Equal(t, exitNo, code, errOut)
	require.Contains(t, out, "IPv4 customer -> shop/frontend 8080/TCP: allow\n")
	require.Contains(t, out, "IPv6 customer -> shop/frontend 8080/TCP: deny\n")
}

func TestDiffOfTwoFolders(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "diff", shop, shop)
	require.Zero(t, code, errOut)
	require.Equal(t, "0 verdicts and 0 isolations differ\n", out)
	dir := copyShop(t, "policies.yaml", "- port: sql", "- port: 5400\n          endPort: 5431")
	code, out, errOut = runWeir(t, "policy", "diff", shop, dir)
	require.Equal(t, exitNo, code, errOut)
	require.True(t, strings.HasPrefix(out, "shop/api -> shop/db 5432/TCP (IPv4, IPv6): allow becomes deny\n    was allow by NetworkPolicy shop/api egress[0] ("+shop+"/policies.yaml:58) and NetworkPolicy shop/db ingress[0]"), out)
	require.Contains(t, out, "\n    now deny by default deny, because the pod is selected by")
	require.True(t, strings.HasSuffix(out, "\n1 verdict and 0 isolations differ\n"))

	dir = copyShop(t, "policies.yaml", "name: default-deny\n  namespace: shop", "name: default-deny\n  namespace: ops")
	code, out, _ = runWeir(t, "policy", "diff", shop, dir, "-o", "json", "--port", "80")
	require.Equal(t, exitNo, code)
	var d diffAnswer
	require.NoError(t, json.Unmarshal([]byte(out), &d))
	require.Contains(t, d.Isolation, diffIsolation{"ops/console", "egress", true, []string{"NetworkPolicy ops/default-deny (" + dir + "/policies.yaml:2)"}})
	require.Contains(t, d.Isolation, diffIsolation{"shop/db", "egress", false, []string{"NetworkPolicy shop/default-deny (" + shop + "/policies.yaml:2)"}})
	for _, v := range d.Verdicts {
		require.EqualValues(t, 80, v.Port)
		require.NotEmpty(t, v.Old.Rules)
		require.NotEmpty(t, v.New.Rules)
	}
	require.NotEmpty(t, d.Verdicts)
}

// A world of one policy and two cases, of which one has a wrong cell and another
// a policy that nobody can read.
const policyCases = `{"format": "netpol-cases/1", "worlds": {"w": {"namespaces": {"x": {}}, "pods": [
 {"ns": "x", "name": "a", "labels": {}, "ip": "10.0.0.1", "ports": []}, {"ns": "x", "name": "b", "labels": {}, "ip": "10.0.0.2", "ports": []}],
 "externals": [], "entities": [], "probes": ["TCP/80"]}}, "cases": [
 {"id": "right", "suite": "s", "world": "w", "title": "", "tags": [], "steps": [{"do": [], "order": ["x/a", "x/b"], "expect": {"TCP/80": ["s.", ".s"]}}]},
 {"id": "wrong", "suite": "s", "world": "w", "title": "", "tags": [], "steps": [{"do": [], "order": ["x/a", "x/b"], "expect": {"TCP/80": ["sI", ".s"]}}]},
 {"id": "refused", "suite": "s", "world": "w", "title": "", "tags": [], "steps": [{"do": [{"apply": {"apiVersion": "v1", "kind": "Policy"}}], "order": ["x/a", "x/b"], "expect": {"TCP/80": ["s.", ".s"]}}]}]}`

func TestAFileOfPolicyCasesIsPlayed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cases.json")
	require.NoError(t, os.WriteFile(path, []byte(policyCases), 0o600))
	code, out, errOut := runWeir(t, "policy", "test", path)
	require.Equal(t, exitNo, code, errOut)
	require.True(t, strings.HasSuffix(out, "\n1 cases passed, 2 failed\n"), out)
	require.Contains(t, out, "step 0 x/a -> x/b TCP/80: want I, got .; egress allow by")
	require.Contains(t, out, "FAILED  cases.json  wrong ")
	require.Contains(t, out, "FAILED  cases.json  refused ")
	require.NotContains(t, out, "cases.json  right", "only failures have a line")

	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write([]byte(strings.Replace(policyCases, "netpol-cases/1", "netpol-cases/3", 1)))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(path, z.Bytes(), 0o600))
	code, _, errOut = runWeir(t, "policy", "test", path)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, `format "netpol-cases/3" is not netpol-cases/1`)
}

func TestValidateReportsATestThatIsWrittenWrong(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a_test.yaml")
	for text, want := range map[string]struct {
		code int
		out  string
	}{
		"metadata: {name: t}\nexpect: 5\n":                                           {exitNo, "a_test.yaml:"},
		"expect: [{from: a, to: b, port: 80, verdict: deny}]\n":                      {exitNo, "metadata.name: is missing"},
		"metadata: {name: t}\nexpect: [{from: a, to: b, port: 80, verdict: deny}]\n": {exitOK, "0 problems"},
	} {
		require.NoError(t, os.WriteFile(name, []byte("apiVersion: weir.net/v1\nkind: PolicyTest\n"+text), 0o600))
		code, out, errOut := runWeir(t, "policy", "validate", dir)
		require.Equal(t, want.code, code, "%s%s", out, errOut)
		require.Contains(t, out, want.out)
	}
}

// Where a folder cannot be judged at all, its report says so and replaces one of an earlier run.
func TestAFolderThatCannotBeJudgedIsInTheReport(t *testing.T) {
	dir := t.TempDir()
	report := filepath.Join(dir, "report.xml")
	require.NoError(t, os.WriteFile(report, []byte("of an earlier run"), 0o600))
	code, _, errOut := runWeir(t, "policy", "test", filepath.Join(dir, "nothing"), "--junit", report)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "no such file")
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	require.Contains(t, string(text), `errors="1"`)
	require.Contains(t, string(text), "no such file")
	code, _, _ = runWeir(t, "policy", "test", dir, "--junit", "-", "--tap", "-")
	require.Equal(t, exitFailed, code)
}

func TestATableNeedsPods(t *testing.T) {
	code, _, errOut := runWeir(t, "policy", "table", t.TempDir())
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "has no pods")
}

func TestAWrongWordNamesTheHelp(t *testing.T) {
	for want, args := range map[string][]string{
		`"polcy" is not a command of weir; see weir --help`:              {"polcy"},
		`"tset" is not a command of weir policy; see weir policy --help`: {"policy", "tset"},
		"unknown flag: --junti; see weir policy test --help":             {"policy", "test", "--junti"},
		"1 argument given; the form is: weir policy diff OLD NEW":        {"policy", "diff", "a"},
	} {
		code, _, errOut := runWeir(t, args...)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errOut, want)
	}
}
