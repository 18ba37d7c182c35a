package cmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
)

// shopFlow is an event of the shop, as the monitor writes it.
func shopFlow(dir gen.Direction, from, to, proto string, port uint16) gen.Event {
	peer := func(who, ip string, port uint16) gen.EventPeer {
		if who == "" {
			return gen.EventPeer{IP: "203.0.113.7", Port: port, Identity: 9, Labels: []string{"reserved:world-ipv4"}}
		}
		ns, app, _ := strings.Cut(who, "/")
		return gen.EventPeer{IP: ip, Port: port, Identity: 300, Pod: who, Labels: []string{
			"k8s:app=" + app, "k8s:io.kubernetes.pod.namespace=" + ns, "k8s:io.cilium.k8s.policy.cluster=default",
			"k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=" + ns}}
	}
	return gen.Event{Time: time.Unix(1e9, 0).UTC(), Type: gen.EventVerdict, Verdict: gen.VerdictAllow, Direction: dir, Proto: proto,
		Source: peer(from, "10.0.0.1", 40000), Destination: peer(to, "10.0.0.2", port)}
}

// suggestInput is the flows of the shop as lines.
func suggestInput(t *testing.T, events ...gen.Event) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, e := range events {
		require.NoError(t, json.NewEncoder(&b).Encode(e))
	}
	return b.Bytes()
}

func TestSuggestedPoliciesAreValidAndInForm(t *testing.T) {
	dir := t.TempDir()
	flows := filepath.Join(dir, "flows.jsonl")
	require.NoError(t, os.WriteFile(flows, suggestInput(t,
		shopFlow(gen.DirectionIngress, "", "shop/frontend", "TCP", 8080),
		shopFlow(gen.DirectionEgress, "shop/frontend", "shop/api", "TCP", 9000),
		shopFlow(gen.DirectionIngress, "shop/frontend", "shop/api", "TCP", 9000),
		shopFlow(gen.DirectionIngress, "ops/console", "shop/api", "TCP", 9001)), 0o600))
	for _, kind := range []string{"", "NetworkPolicy", "CiliumNetworkPolicy"} {
		code, out, errOut := runWeir(t, "policy", "suggest", "--kind", kind, flows)
		require.Equal(t, exitOK, code, errOut)
		if kind != "" {
			require.Contains(t, out, "kind: "+kind+"\n")
		}
		policies := filepath.Join(dir, "policies.yaml")
		require.NoError(t, os.WriteFile(policies, []byte(out), 0o600))
		code, out, errOut = runWeir(t, "policy", "validate", policies)
		require.Equal(t, exitOK, code, "%s%s", out, errOut)
		require.Contains(t, out, "2 policies")
		for _, command := range []string{"lint", "fmt"} {
			args := []string{"policy", command, policies}
			if command == "fmt" {
				args = append(args, "--check")
			}
			code, out, errOut = runWeir(t, args...)
			require.Equal(t, exitOK, code, "%s: %s%s", command, out, errOut)
		}
	}
}

func TestSuggestReadsTheStandardInput(t *testing.T) {
	var out, errOut bytes.Buffer
	root := (&app{out: &out, errOut: &errOut}).root()
	root.SetArgs([]string{"policy", "suggest", "-"})
	root.SetIn(bytes.NewReader(suggestInput(t, shopFlow(gen.DirectionEgress, "shop/frontend", "shop/api", "GRE", 0))))
	require.Error(t, root.Execute(), "a protocol without a name is written as its number")
	root.SetIn(bytes.NewReader(suggestInput(t, shopFlow(gen.DirectionEgress, "shop/frontend", "shop/api", "47", 0))))
	require.NoError(t, root.Execute())
	require.Contains(t, out.String(), "# egress of shop/suggested-frontend with pods app=api of shop: 47 has no ports")
	require.NotContains(t, out.String(), "ports:")
}

func TestSuggestSaysWhatIsWrongWithItsInput(t *testing.T) {
	dir := t.TempDir()
	flows := filepath.Join(dir, "flows.jsonl")
	for text, want := range map[string]string{
		"":                     "judge no pod",
		"\n\nno json\n":        flows + ":3: ",
		`{"type":"verdict"}`:   "judge no pod",
		"{\"time\": \"never\"": flows + ":1: ",
	} {
		require.NoError(t, os.WriteFile(flows, []byte(text), 0o600))
		code, _, errOut := runWeir(t, "policy", "suggest", flows)
		require.Equal(t, exitFailed, code)
		require.Contains(t, errOut, want)
	}
	code, _, _ := runWeir(t, "policy", "suggest", "a", "b")
	require.Equal(t, exitFailed, code)
	code, _, _ = runWeir(t, "policy", "suggest", filepath.Join(dir, "none"))
	require.Equal(t, exitFailed, code)
}
