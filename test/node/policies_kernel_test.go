package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

var http81 = lab.Port{Proto: types.ProtoTCP, Port: 81}

func TestB03_ExceptOfACatchAllBlockIsDenied(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("left-out", 10), outHost("covered", 200)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", ""),
	}})
	p1, hosts := addPod(b, "x", "p1"), hostEnds(b, http80, http81)
	out, in := hosts["left-out"], hosts["covered"]
	verdicts(t, b, "without a policy", cell{from: p1, to: out, port: http80, want: "."}, cell{from: p1, to: in, port: http80, want: "."},
		cell{from: p1, to: out, port: http81, want: "."}, cell{from: p1, to: in, port: http81, want: "."})
	for what, ports := range map[string]string{"without ports": "", "with TCP/80": ", ports: [{protocol: TCP, port: 80}]"} {
		other := "." // port 81, where there is no except
		if ports != "" {
			other = "E"
		}
		block := "{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [203.0.113.10/32]}}, {ipBlock: {cidr: '::/0', except: ['2001:db8::10/128']}}]" + ports + "}"
		egress := func(rules ...string) string {
			return "policyTypes: [Egress], egress: [" + strings.Join(rules, ", ") + "]"
		}
		except := policyYAML("x", "except", "p1", egress(block))
		apply(b, except)
		verdicts(t, b, "except "+what,
			cell{from: p1, to: out, port: http80, want: "E", by: gen.RuleDefaultDeny}, cell{from: p1, to: out, port: http81, want: "E", by: gen.RuleDefaultDeny},
			cell{from: p1, to: in, port: http80, want: ".", by: gen.RulePolicy}, cell{from: p1, to: in, port: http81, want: other})

		again := "{to: [{ipBlock: {cidr: 203.0.113.10/32}}, {ipBlock: {cidr: '2001:db8::10/128'}}]" + ports + "}"
		union := []cell{{from: p1, to: out, port: http80, want: ".", by: gen.RulePolicy}, {from: p1, to: out, port: http81, want: other},
			{from: p1, to: in, port: http80, want: ".", by: gen.RulePolicy}, {from: p1, to: in, port: http81, want: other}}
		apply(b, policyYAML("x", "except", "p1", egress(block, again)))
		verdicts(t, b, what+" and another rule of the policy", union...)
		apply(b, except, policyYAML("x", "again", "p1", egress(again)))
		verdicts(t, b, what+" and another policy", union...)
	}
}

func TestB16_EveryNamespaceIsNotTheWorld(t *testing.T) {
	env := testutils.Kernel(t)
	remote := outHost("far", 77)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 10), remote}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "p2", "", "") + box.PodYAML("y", "p3", "", "") + box.PodYAML("bare", "p4", "", ""),
		"rest.yaml": namespaceYAML("x", "red") + namespaceYAML("y", "blue") + nodeYAML(remote),
	}})
	p1, hosts, node := addPod(b, "x", "p1", http80), hostEnds(b, http80), nodeEnd(b)
	b.Serve(b.Node(), http80)
	pods := []lab.Source{addPod(b, "x", "p2", http80), addPod(b, "y", "p3", http80), addPod(b, "bare", "p4", http80)}
	others := []lab.Source{hosts["ext"], hosts["far"], node}
	both := func(want string) (cells []cell) {
		for _, o := range slices.Concat(pods, others) {
			cells = append(cells, cell{from: p1, to: o, port: http80, want: want}, cell{from: o, to: p1, port: http80, want: want})
		}
		return cells
	}
	verdicts(t, b, "without a policy", both(".")...)

	for _, peer := range []string{"{namespaceSelector: {}}", "{namespaceSelector: {}, podSelector: {}}"} {
		apply(b, policyYAML("x", "every", "p1", "policyTypes: [Egress], egress: [{to: ["+peer+"]}]"))
		var cells []cell
		for _, p := range pods {
			cells = append(cells, cell{from: p1, to: p, port: http80, want: ".", by: gen.RulePolicy})
		}
		for _, o := range others { // the local node's rule is about its way to the pods only
			cells = append(cells, cell{from: p1, to: o, port: http80, want: "E", by: gen.RuleDefaultDeny}, cell{from: o, to: p1, port: http80, want: "."})
		}
		verdicts(t, b, "egress to "+peer, cells...)

		apply(b, policyYAML("x", "every", "p1", "policyTypes: [Ingress], ingress: [{from: ["+peer+"]}]"))
		cells = []cell{
			{from: hosts["ext"], to: p1, port: http80, want: "I", by: gen.RuleDefaultDeny},
			{from: hosts["far"], to: p1, port: http80, want: "I", by: gen.RuleDefaultDeny, who: uint32(identity.ReservedRemoteNode)},
			{from: node, to: p1, port: http80, want: ".", by: gen.RuleLocalNode, who: uint32(identity.ReservedHost)},
			{from: p1, to: node, port: http80, want: "."},
		}
		for _, p := range pods {
			cells = append(cells, cell{from: p, to: p1, port: http80, want: ".", by: gen.RulePolicy})
		}
		verdicts(t, b, "ingress from "+peer, cells...)
	}
}

func TestB22_TheNodeProbesItsPodsUnderDefaultDeny(t *testing.T) {
	env := testutils.Kernel(t)
	b, p := probed(t, env, "default")
	// So that a denial below is the policy's.
	verdicts(t, b, "without a policy", cell{from: p.node, to: p.pod, port: http80, want: "."}, cell{from: p.far, to: p.pod, port: http80, want: "."})
	p.pages(t, "without a policy", p.node, true)
	p.pages(t, "without a policy", p.far, true)
	for _, kinds := range []string{"[Ingress]", "[Ingress, Egress]"} {
		apply(b, policyYAML("x", "deny", "p1", "policyTypes: "+kinds))
		p.onlyTheNode(t, b, "deny all "+kinds, gen.RuleDefaultDeny)
	}
}

func TestB22_TheNodeProbesItsPodsWhereEnforcementIsAlways(t *testing.T) {
	env := testutils.Kernel(t)
	b, p := probed(t, env, "always")
	p.onlyTheNode(t, b, "always, without a policy", gen.RuleModeAlways)
	apply(b, policyYAML("x", "deny", "p1", "policyTypes: [Ingress, Egress]"))
	p.onlyTheNode(t, b, "always, deny all", gen.RuleDefaultDeny)
}

// liar is a pod that says it belongs to another namespace, cluster and service account.
func liar(name, more string) string {
	text := box.PodYAML("x", name, strings.Join([]string{
		labels.KeyPodNamespace + "=other", labels.KeyCluster + "=elsewhere", labels.KeyServiceAccount + "=root", labels.KeyNamespaceLabels + ".team=blue",
		"k8s:" + labels.KeyPodNamespace + "=other", "k8s:" + labels.KeyCluster + "=elsewhere", "k8s:" + labels.KeyServiceAccount + "=root",
	}, ","), "")
	return strings.Replace(text, "spec:\n", "spec:\n"+more, 1)
}

func TestG01_LabelsOfATenantDoNotMoveAPod(t *testing.T) {
	env := testutils.Kernel(t)
	honest := namespaceYAML("x", "red") + namespaceYAML("other", "blue") + "---\n" + box.PodYAML("x", "free", "", "") +
		box.PodYAML("other", "victim", "", "") + strings.Replace(box.PodYAML("other", "friend", "", ""), "spec:\n", "spec:\n  serviceAccountName: root\n", 1)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": honest, "liars.yaml": liar("worker", "  serviceAccountName: worker\n") + liar("nobody", "") + box.PodYAML("x", "late", "", ""),
	}})
	free, victim, friend := addPod(b, "x", "free", http80), addPod(b, "other", "victim", http80), addPod(b, "other", "friend", http80)
	liars := []lab.Source{addPod(b, "x", "worker", http80), addPod(b, "x", "nobody", http80), addPod(b, "x", "late", http80)}

	// One begins to lie when it is attached already.
	b.Write("liars.yaml", liar("worker", "  serviceAccountName: worker\n")+liar("nobody", "")+strings.Replace(liar("late", ""), "  labels:\n", "  labels:\n    seen: 'yes'\n", 1))
	b.Eventually("the change of a pod's labels is seen", func() bool { return slices.Contains(labelsOf(t, b, "late"), "k8s:seen=yes") })
	for name, account := range map[string][]string{"worker": {"k8s:" + labels.KeyServiceAccount + "=worker"}, "nobody": nil, "late": nil} {
		got := slices.DeleteFunc(labelsOf(t, b, name), func(l string) bool { return l == "k8s:pod="+name || l == "k8s:seen=yes" })
		want := append([]string{"k8s:" + labels.KeyNamespaceLabels + ".team=red", "k8s:" + labels.KeyNamespaceLabels + ".kubernetes.io/metadata.name=x", "k8s:" + labels.KeyCluster + "=default", "k8s:" + labels.KeyPodNamespace + "=x"}, account...)
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("pod %s has the labels %q, want %q", name, got, want)
		}
	}

	all := func(namespace, spec string) string {
		return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: all, namespace: %s}\nspec: {podSelector: {}, %s}\n", namespace, spec)
	}
	var open, shut, in []cell
	for _, l := range liars {
		open = append(open, cell{from: free, to: l, port: http80, want: ".", by: gen.RuleNotIsolated})
		shut = append(shut, cell{from: friend, to: l, port: http80, want: "I", by: gen.RuleDefaultDeny})
		in = append(in, cell{from: l, to: victim, port: http80, want: "I", by: gen.RuleDefaultDeny})
	}
	apply(b, all("other", "policyTypes: [Ingress]"))
	verdicts(t, b, "the other namespace is closed", append(open, cell{from: free, to: victim, port: http80, want: "I"})...)
	apply(b, all("x", "policyTypes: [Ingress]"), all("other", "ingress: [{}]"))
	verdicts(t, b, "its own namespace is closed, the other open", append(shut, cell{from: free, to: victim, port: http80, want: "."})...)

	// Nor is one let in as what it says to be.
	in = append(in, cell{from: free, to: victim, port: http80, want: "I", by: gen.RuleDefaultDeny}, cell{from: friend, to: victim, port: http80, want: ".", by: gen.RulePolicy})
	for _, peer := range []string{"{podSelector: {}}", "{namespaceSelector: {matchLabels: {team: blue}}}"} {
		apply(b, all("other", "ingress: [{from: ["+peer+"]}]"))
		verdicts(t, b, "ingress from "+peer, in...)
	}
	for label, cells := range map[string][]cell{
		labels.KeyServiceAccount + "': root": in, "k8s:" + labels.KeyServiceAccount + "': root": in, "k8s:" + labels.KeyPodNamespace + "': other": in,
		"k8s:" + labels.KeyCluster + "': elsewhere": in[:len(liars)],
	} {
		apply(b, "---\napiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: as}\n"+
			"spec: {endpointSelector: {matchLabels: {pod: victim}}, ingress: [{fromEndpoints: [{matchLabels: {'"+label+"}}]}]}\n")
		verdicts(t, b, "ingress from '"+label, cells...)
	}
}

// labelsOf are the labels that the API gives for the endpoint of a pod.
func labelsOf(t *testing.T, b *box.Box, pod string) []string {
	t.Helper()
	eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range eps {
		if e.Pod.Name == pod {
			return e.Labels
		}
	}
	t.Fatalf("no endpoint of pod %s", pod)
	return nil
}

func TestG04_ABlockAsOnlyPeerLetsNoPodIn(t *testing.T) {
	env := testutils.Kernel(t)
	far := lab.Host{Name: "far", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:ffff::7")}}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9), far}, AgentFlags: []string{"--cluster-name=blue-7"}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "p2", "", "") + box.PodYAML("y", "p3", "", ""),
	}})
	p1, hosts := addPod(b, "x", "p1", http80), hostEnds(b, http80)
	p2, p3, ext, out := addPod(b, "x", "p2", http80), addPod(b, "y", "p3", http80), hosts["ext"], hosts["far"]
	if l := labelsOf(t, b, "p1"); !slices.Contains(l, "k8s:"+labels.KeyCluster+"=blue-7") {
		t.Fatalf("p1 has the labels %q", l)
	}
	for _, c := range []struct {
		block       string
		in, outside lab.Source // the host's addresses inside and outside the block
	}{{"203.0.113.0/24", only4(ext), only6(ext)}, {"2001:db8::/112", only6(ext), only4(ext)}} {
		apply(b, policyYAML("x", "block", "p1", "policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: '"+c.block+"'}}]}]"))
		cells := []cell{{from: c.in, to: p1, port: http80, want: ".", by: gen.RulePolicy}}
		for _, from := range []lab.Source{p2, p3, out, c.outside} {
			cells = append(cells, cell{from: from, to: p1, port: http80, want: "I", by: gen.RuleDefaultDeny})
		}
		verdicts(t, b, "ingress from "+c.block, cells...)

		apply(b, policyYAML("x", "block", "p1", "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: '"+c.block+"'}}]}]"))
		cells = []cell{{from: p1, to: c.in, port: http80, want: ".", by: gen.RulePolicy}}
		for _, to := range []lab.Source{p2, p3, out, c.outside} {
			cells = append(cells, cell{from: p1, to: to, port: http80, want: "E", by: gen.RuleDefaultDeny})
		}
		verdicts(t, b, "egress to "+c.block, cells...)
	}
	apply(b, policyYAML("x", "pods", "p1", "ingress: [{from: [{podSelector: {}}]}]")) // the name itself shuts nobody out
	verdicts(t, b, "ingress from the namespace", cell{from: p2, to: p1, port: http80, want: ".", by: gen.RulePolicy},
		cell{from: p3, to: p1, port: http80, want: "I", by: gen.RuleDefaultDeny}, cell{from: ext, to: p1, port: http80, want: "I", by: gen.RuleDefaultDeny})
}

func TestG11_AnEchoRequestNeverRidesTheOppositeDirection(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9)}, Files: map[string]string{"pods.yaml": box.PodYAML("x", "p1", "", "")}})
	p1, host := addPod(b, "x", "p1"), b.Record.Hosts[0]
	ends := map[string][2]*icmpEnd{}
	for i, name := range []string{"IPv4", "IPv6"} {
		ends[name] = [2]*icmpEnd{newICMPEnd(t, p1.Netns, p1.Addrs[i]), newICMPEnd(t, host.Netns, host.Addresses[i])}
	}
	for name, e := range ends { // without a policy the host may begin, so a request that is lost below was denied
		pod, ext := e[0], e[1]
		ask := echo{id: 4000, seq: 1}
		b.Eventually(name+": without a policy the host's ping arrives", func() bool { ext.send(t, pod, ask); return pod.times(ask) > 0 })
	}
	apply(b, policyYAML("x", "out", "p1", "policyTypes: [Ingress, Egress], egress: [{to: [{ipBlock: {cidr: 203.0.113.9/32}}, {ipBlock: {cidr: '2001:db8::9/128'}}]}]"))
	for name, e := range ends {
		for _, id := range []uint16{7, 0} {
			echoes(t, b, fmt.Sprintf("%s, id %d", name, id), e[0], e[1], id)
		}
	}
}

// echoes lets a pod ping a host that may not ping the pod.
func echoes(t *testing.T, b *box.Box, when string, pod, ext *icmpEnd, id uint16) {
	t.Helper()
	ping := func(seq uint16) {
		t.Helper()
		b.Eventually(fmt.Sprintf("%s: the pod's ping %d is answered", when, seq), func() bool {
			pod.send(t, ext, echo{id: id, seq: seq})
			return pod.times(echo{reply: true, id: id, seq: seq}) > 0
		})
	}
	ping(1)
	rec, err := probe.Follow(t.Context(), b.Agent)
	if err != nil {
		t.Fatal(err)
	}
	ask := echo{id: id, seq: 100}
	flow := lab.Flow{Proto: ext.proto, Src: netip.AddrPortFrom(ext.addr, id), Dst: netip.AddrPortFrom(pod.addr, 0)}
	denied := rec.Denied(flow)
	ext.send(t, pod, ask)
	patience, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	select {
	case <-denied:
	case <-patience.Done():
		t.Errorf("%s: no event says that the host's ping was denied", when)
	}
	// A reply of the same id and of any number passes, also now; one of another id does not.
	ext.send(t, pod, echo{reply: true, id: id + 1000, seq: 101})
	answer := echo{reply: true, id: id, seq: 102}
	b.Eventually(when+": the host's reply arrives", func() bool { ext.send(t, pod, answer); return pod.times(answer) > 0 })
	ping(2)
	_, events, err := rec.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := pod.times(ask); n > 0 {
		t.Errorf("%s: the host's ping rides on the pod's: it arrived", when)
	}
	if n := ext.times(echo{reply: true, id: id, seq: ask.seq}); n > 0 {
		t.Errorf("%s: the pod answered the host's ping", when)
	}
	if n := pod.times(echo{reply: true, id: id + 1000, seq: 101}); n > 0 {
		t.Errorf("%s: a reply to nothing arrived", when)
	}
	if !slices.ContainsFunc(events, func(e gen.Event) bool {
		f, ok := probe.FlowOf(e)
		return ok && f == flow && e.Verdict == gen.VerdictDeny && e.Direction == "ingress" && e.IcmpType == ext.kind(false) && e.Rule.Kind == gen.RuleDefaultDeny
	}) {
		t.Errorf("%s: no event tells that the default deny of ingress stopped the request: %+v", when, events)
	}
}
