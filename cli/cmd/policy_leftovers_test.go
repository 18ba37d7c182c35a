package cmd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy/k8s"
)

func TestFmtKeepsTheWholeMode(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(name, []byte(untidy), 0o640))
	want := 0o640 | os.ModeSetgid | os.ModeSticky
	require.NoError(t, os.Chmod(name, want))
	code, _, errOut := runWeir(t, "policy", "fmt", "-w", name)
	require.Equal(t, exitOK, code, errOut)
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, want, info.Mode())
}

func TestFmtLeavesAFileOfTwoNamesAndGoesOn(t *testing.T) {
	dir := t.TempDir()
	one, two, other := filepath.Join(dir, "one.yaml"), filepath.Join(dir, "two"), filepath.Join(dir, "x.yaml")
	require.NoError(t, os.WriteFile(one, []byte(untidy), 0o600))
	require.NoError(t, os.Link(one, two))
	require.NoError(t, os.WriteFile(other, []byte(untidy), 0o600))
	code, out, errOut := runWeir(t, "policy", "fmt", "-w", dir)
	require.Equal(t, exitNo, code)
	require.Equal(t, other+"\n", out)
	require.Contains(t, errOut, one+": has other names (hard links)")
	a, err := os.Stat(one)
	require.NoError(t, err)
	b, err := os.Stat(two)
	require.NoError(t, err)
	require.True(t, os.SameFile(a, b))
	text, err := os.ReadFile(one)
	require.NoError(t, err)
	require.Equal(t, untidy, string(text))
}

func TestFmtHasTheLimitOfValidate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(name, []byte("# "+strings.Repeat("x", k8s.MaxBytes)), 0o600))
	_, validate, _ := runWeir(t, "policy", "validate", name)
	code, _, errOut := runWeir(t, "policy", "fmt", "--check", name)
	require.Equal(t, exitNo, code)
	line, _, _ := strings.Cut(validate, "\n")
	require.Equal(t, line+"\n", errOut)
}

func TestADifferenceAsJSONHasListsAndNoNull(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "diff", "-o", "json", shop, shop)
	require.Equal(t, exitOK, code, errOut)
	require.JSONEq(t, `{"verdicts": [], "isolation": [], "gone": [], "came": [], "notAsked": 0}`, out)
}

func TestATableOfNothingAsJSONHasListsAndNoNull(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "table", "-o", "json", "--port", "80", "--pod", "node", shop)
	require.Equal(t, exitOK, code, errOut)
	require.NotContains(t, out, "null")
}

func TestATableOfICMPAsksForThePingOfEachFamily(t *testing.T) {
	code, out, errOut := runWeir(t, "policy", "table", "--port", "ICMP", shop)
	require.Equal(t, exitOK, code, errOut)
	v4, v6, ok := strings.Cut(out, "IPv6")
	require.True(t, ok)
	require.Contains(t, v4, "shop/api:8/ICMP ")
	require.NotContains(t, v4, "ICMPv6")
	require.Contains(t, v6, "shop/api:128/ICMPv6")
	require.NotContains(t, v6, "/ICMP ")
	code, _, _ = runWeir(t, "policy", "table", "--port", "http", shop)
	require.Equal(t, exitFailed, code)
}

func TestADifferenceOfOnePod(t *testing.T) {
	code, _, errOut := runWeir(t, "policy", "diff", "--pod", "nobody", shop, shop)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "--pod")
	code, _, errOut = runWeir(t, "policy", "diff", "--pod", "shop/api", shop, shop)
	require.Equal(t, exitOK, code, errOut)
}

func TestAnUnknownFilterOfTheMonitorIsWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"--type", "foo"}, {"--type", "drop,foo"}, {"--verdict", "foo"}, {"--direction", "foo"}} {
		code, _, errOut := runWeir(t, append([]string{"monitor", "--socket", "/nowhere"}, args...)...)
		require.Equal(t, exitFailed, code, errOut)
		require.Contains(t, errOut, `"foo" is not known`)
	}
	_, _, errOut := runWeir(t, "monitor", "--socket", "/nowhere", "--type", "drop", "--verdict", "deny", "--direction", "ingress")
	require.Contains(t, errOut, "the agent is not running", "known filters are taken")
}

func TestAnEventOfICMPHasATypeAndNoPort(t *testing.T) {
	e := gen.Event{Type: gen.EventVerdict, Verdict: gen.Verdict("allow"), Direction: gen.Direction("egress"), Proto: "ICMP", IcmpType: 8,
		Source: gen.EventPeer{IP: "10.77.0.2", Port: 8880, Pod: "a/b"}, Destination: gen.EventPeer{IP: "10.77.0.3", Identity: 7}}
	require.Contains(t, eventLine(e), " ICMP type 8 code 0 10.77.0.2 (a/b) -> 10.77.0.3 (kube-apiserver)")
	e.Proto = "UDP"
	require.Contains(t, eventLine(e), fmt.Sprintf(" UDP 10.77.0.2:%d (a/b)", 8880))
}
