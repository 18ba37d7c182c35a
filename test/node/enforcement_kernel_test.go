package node

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// enforce gives a pod a mode by the command.
func enforce(t *testing.T, b *box.Box, p *lab.AttachedPod, mode string) {
	t.Helper()
	code, out := run(t, b, nodeCommand(t, box.Binary(t, "weir"), "--socket", b.Socket(), "endpoint", "enforcement", "pod-name:"+p.Key(), mode))
	if code != 0 || !strings.Contains(out, "enforcement "+mode) {
		t.Fatalf("weir endpoint enforcement %s: %s", mode, out)
	}
}

// Two pods of one identity are held to one set of policies in modes of their own,
// which change at run time, for open connections too, and outlive a killed agent.
func TestPodsOfOneIdentityAreEachInAModeOfTheirOwn(t *testing.T) {
	env := testutils.Kernel(t)
	web := func(name string) string { // the same labels
		return strings.Replace(box.PodYAML("x", name, "", ""), "    pod: "+name+"\n", "    app: web\n", 1)
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": web("shut") + web("open") + box.PodYAML("x", "client", "role=client", "") + box.PodYAML("x", "stranger", "", ""),
	}})
	add := func(name string) *lab.AttachedPod {
		return b.Add(lab.Pod{Namespace: "x", Name: name, Ports: []lab.Port{http80}})
	}
	shutPod, openPod, clientPod, strangerPod := add("shut"), add("open"), add("client"), add("stranger")
	shut, open, client, stranger, node := podEnd(shutPod), podEnd(openPod), podEnd(clientPod), podEnd(strangerPod), nodeEnd(b)
	of := func(p *lab.AttachedPod) gen.EndpointPolicy { return endpointOf(t, b, p).Policy }
	if endpointOf(t, b, shutPod).Identity.ID != endpointOf(t, b, openPod).Identity.ID || of(shutPod).Slot != of(openPod).Slot {
		t.Fatal("the two pods have not one identity and one slot")
	}
	enforce(t, b, shutPod, "always")
	enforce(t, b, openPod, "never")
	if s, o := of(shutPod), of(openPod); s.Slot == o.Slot || s.Enforcement != gen.EnforcementAlways || o.Enforcement != gen.EnforcementNever ||
		s.Ingress != gen.Enforced || o.Ingress != gen.Open {
		t.Errorf("in two modes they have %+v and %+v", s, o)
	}
	modes := func(when string) {
		t.Helper()
		verdicts(t, b, when,
			cell{from: client, to: shut, port: http80, want: "I", by: gen.RuleEndpointAlways}, cell{from: shut, to: client, port: http80, want: "E", by: gen.RuleEndpointAlways},
			cell{from: client, to: open, port: http80, want: ".", by: gen.RuleEndpointNever}, cell{from: open, to: client, port: http80, want: ".", by: gen.RuleEndpointNever},
			cell{from: open, to: shut, port: http80, want: "I", by: gen.RuleEndpointAlways}, cell{from: node, to: shut, port: http80, want: ".", by: gen.RuleLocalNode},
			cell{from: stranger, to: client, port: http80, want: ".", by: gen.RuleNotIsolated})
	}
	modes("without a policy")
	told(t, b, clientPod, shutPod, openPod)

	b.Write("policies.yaml", `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: x}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]
`)
	b.InForce(1)
	verdicts(t, b, "with a policy",
		cell{from: client, to: shut, port: http80, want: ".", by: gen.RulePolicy}, cell{from: stranger, to: shut, port: http80, want: "I", by: gen.RuleDefaultDeny},
		cell{from: shut, to: client, port: http80, want: "E", by: gen.RuleEndpointAlways}, cell{from: stranger, to: open, port: http80, want: ".", by: gen.RuleEndpointNever})

	stays, goes := dial(t, clientPod.Netns, netip.AddrPortFrom(shutPod.Addresses[0], 80)), dial(t, strangerPod.Netns, netip.AddrPortFrom(openPod.Addresses[0], 80))
	word(t, stays)
	word(t, goes)
	slot, stop := of(shutPod).Slot, follow(t, b)
	enforce(t, b, openPod, "default")
	if _, err := goes.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	verdicts(t, b, "after never", cell{from: client, to: open, port: http80, want: ".", by: gen.RulePolicy},
		cell{from: stranger, to: open, port: http80, want: "I", by: gen.RuleDefaultDeny}, cell{from: open, to: stranger, port: http80, want: ".", by: gen.RuleNotIsolated})
	f := lab.Flow{Proto: types.ProtoTCP, Src: goes.LocalAddr().(*net.TCPAddr).AddrPort(), Dst: netip.AddrPortFrom(openPod.Addresses[0], 80)}
	if len(denials(stop(), f)) == 0 {
		t.Errorf("the open connection %v is not denied", f)
	}
	word(t, stays)
	if now := of(shutPod); now.Slot != slot || now.Enforcement != gen.EnforcementAlways {
		t.Errorf("the mode of the twin changed slot %d to %+v", slot, now)
	}

	b.Write("policies.yaml", "")
	b.InForce(0)
	for _, mode := range []string{"node", "never"} { // the last one is there when the agent dies
		enforce(t, b, openPod, mode)
	}
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	if all, _ := reaches(b, strangerPod, openPod, http80); !all {
		t.Error("never is not in force after the call, without an agent")
	}
	if _, any := reaches(b, strangerPod, shutPod, http80); any {
		t.Error("always is not in force without an agent")
	}
	restart(t, b)
	modes("after a kill")
	if s, o := of(shutPod), of(openPod); s.Enforcement != gen.EnforcementAlways || o.Enforcement != gen.EnforcementNever {
		t.Errorf("after a kill they have %+v and %+v", s, o)
	}
	for _, p := range []*lab.AttachedPod{shutPod, openPod} {
		enforce(t, b, p, "node")
	}
	verdicts(t, b, "as the node has it", cell{from: client, to: shut, port: http80, want: ".", by: gen.RuleNotIsolated},
		cell{from: open, to: shut, port: http80, want: ".", by: gen.RuleNotIsolated})
	if c, _ := component(t, b, "enforcement"); c.State != gen.StateOk || c.Message != "" {
		t.Errorf("the status tells of modes that nobody has: %+v", c)
	}
}

// told checks that whoever asks hears of the modes, and that no other word is taken.
func told(t *testing.T, b *box.Box, client, shut, open *lab.AttachedPod) {
	t.Helper()
	weir := func(words ...string) (int, string) {
		return run(t, b, nodeCommand(t, append([]string{box.Binary(t, "weir"), "--socket", b.Socket()}, words...)...))
	}
	for _, c := range []struct {
		to   *lab.AttachedPod
		code int
		want string
	}{{shut, 1, "deny by enforcement always of the endpoint, and no rule allows"}, {open, 0, "allow by enforcement never of the endpoint"}} {
		if code, out := weir("why", client.Key(), c.to.Key()+":80"); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("weir why, exit code %d, does not say %q: %s", code, c.want, out)
		}
	}
	if _, out := weir("endpoint", "list"); !strings.Contains(out, " never ") || !strings.Contains(out, " always ") || !strings.Contains(out, " node ") {
		t.Errorf("weir endpoint list does not show the modes: %s", out)
	}
	if _, out := weir("endpoint", "get", "pod-name:"+open.Key()); !strings.Contains(out, "enforcement     never\n") {
		t.Errorf("weir endpoint get does not show the mode: %s", out)
	}
	const text = " has a mode of its own, never, which allows more than the node's, default\n  breaks enforcement, since "
	if code, out := weir("status"); code != 1 || !strings.Contains(out, text) || strings.Count(out, "enforcement: warning: ") != 1 || !strings.Contains(out, "("+open.Key()+")") {
		t.Errorf("weir status does not warn of the lax mode alone, exit code %d: %s", code, out)
	}
	if code, out := weir("endpoint", "enforcement", "pod-name:"+open.Key(), "sometimes"); code == 0 || !strings.Contains(out, "give node, default, always or never") {
		t.Errorf("an unknown mode: exit code %d: %s", code, out)
	}
	_, err := b.Agent.ChangeEndpoint(t.Context(), "pod-name:"+open.Key(), gen.EndpointSettings{Enforcement: "sometimes"})
	if err == nil || !strings.Contains(err.Error(), `field enforcement: "sometimes" is not known`) {
		t.Errorf("an unknown mode through the API: %v", err)
	}
	if e := endpointOf(t, b, open); e.Policy.Enforcement != gen.EnforcementNever {
		t.Errorf("a refused call changed the mode to %s", e.Policy.Enforcement)
	}
}
