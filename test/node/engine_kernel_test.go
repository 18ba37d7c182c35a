package node

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

func tcpPort(port uint16) lab.Port { return lab.Port{Proto: types.ProtoTCP, Port: port} }
func udpPort(port uint16) lab.Port { return lab.Port{Proto: types.ProtoUDP, Port: port} }

// An ipBlock that covers a pod's address lets that pod in; toCIDR does not.
func TestB01_AnIPBlockMatchesAPod(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "p2", "", "") + box.PodYAML("x", "p3", "", ""),
	}})
	p1, p2, p3 := addPod(b, "x", "p1"), addPod(b, "x", "p2", http80, http81), addPod(b, "x", "p3", http80)
	open := []cell{allowed(p1, p2, http80), denied(p1, p2, http81, "E"), denied(p1, p3, http80, "E")}
	block := policyYAML("x", "block", "p1", "policyTypes: [Egress], egress: [{to: "+blocks(p2.Addrs)+", ports: [{port: 80}]}]")
	apply(b, block)
	verdicts(t, b, "ipBlock", open...)

	cidr := ciliumYAML("cidr", "p1", "egress: [{toCIDR: "+single(p2.Addrs)+", toPorts: [{ports: [{port: '80', protocol: TCP}]}]}]")
	apply(b, cidr)
	verdicts(t, b, "toCIDR", denied(p1, p2, http80, "E"), denied(p1, p2, http81, "E"), denied(p1, p3, http80, "E"))
	apply(b, cidr, block)
	verdicts(t, b, "both", open...)
}

// An egress rule with a port's name means the number that each destination gives
// it, also where two pods of one identity give it different ones.
func TestB05_ANamedPortIsThatOfEachDestination(t *testing.T) {
	env := testutils.Kernel(t)
	twin := func(name, http, dns string) string {
		text := strings.Replace(box.PodYAML("x", name, "", "http="+http+",dns=5300"), "    pod: "+name+"\n", "    pod: twin\n", 1)
		return strings.Replace(text, "containerPort: 5300", "containerPort: 5300, protocol: "+dns, 1)
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "p2", "", "http=8000") + box.PodYAML("x", "p3", "", "http=8080") +
			twin("t2", "8000", "UDP") + twin("t3", "8080", "TCP"),
	}})
	ports := []lab.Port{tcpPort(8000), tcpPort(8080), udpPort(8000), udpPort(8080), tcpPort(5300), udpPort(5300)}
	p1, p2, p3 := addPod(b, "x", "p1"), addPod(b, "x", "p2", ports...), addPod(b, "x", "p3", ports...)
	t2, t3 := addPod(b, "x", "t2", ports...), addPod(b, "x", "t3", ports...)
	_, first := identityOf(t, b, "x/t2")
	if _, second := identityOf(t, b, "x/t3"); first != second {
		t.Fatalf("the twins have the identities %d and %d", first, second)
	}
	want := func(pods ...lab.Source) (cells []cell) {
		for i, p := range pods {
			own, other := tcpPort(8000), tcpPort(8080)
			if i%2 == 1 {
				own, other = other, own
			}
			cells = append(cells, allowed(p1, p, own), denied(p1, p, other, "E"), denied(p1, p, udpPort(own.Port), "E"))
		}
		return cells
	}
	for what, c := range map[string]struct {
		policy string
		cells  []cell
	}{
		"to anybody": {policyYAML("x", "named", "p1", "policyTypes: [Egress], egress: [{ports: [{port: http}]}]"), want(p2, p3, t2, t3)},
		"to the twins": {policyYAML("x", "named", "p1", "policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: twin}}}], ports: [{port: http}]}]"),
			append(want(t2, t3), denied(p1, p2, tcpPort(8000), "E"))},
		"of cilium.io": {ciliumYAML("named", "p1", "egress: [{toEndpoints: [{}], toPorts: [{ports: [{port: http, protocol: TCP}]}]}]"), want(p2, p3, t2, t3)},
		"of UDP": {policyYAML("x", "named", "p1", "policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: dns}]}]"),
			[]cell{allowed(p1, t2, udpPort(5300)), denied(p1, t2, tcpPort(5300), "E"), denied(p1, t3, udpPort(5300), "E"), denied(p1, t3, tcpPort(5300), "E")}},
	} {
		apply(b, c.policy)
		verdicts(t, b, what, c.cells...)
	}
}

// A wide deny holds against a narrow allow, whatever came first.
func TestB10_AWideDenyBeatsANarrowAllowInAnyOrder(t *testing.T) {
	env := testutils.Kernel(t)
	far := lab.Host{Name: "far", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:ffff::7")}}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("narrow", 10), outHost("wide", 200), far}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", ""),
	}})
	p1, hosts := addPod(b, "x", "p1"), hostEnds(b, http80)
	narrow, wide := hosts["narrow"], hosts["wide"]
	const deny, allow = "egressDeny: [{toCIDR: [203.0.113.0/24, '2001:db8::/64']}]", "egress: [{toCIDR: [203.0.113.10/32, '2001:db8::10/128']}]"
	one, two := ciliumYAML("one", "p1", deny), ciliumYAML("two", "p1", allow)
	both := []cell{{from: p1, to: narrow, port: http80, want: "E", by: gen.RulePolicy}, {from: p1, to: wide, port: http80, want: "E", by: gen.RulePolicy}, denied(p1, hosts["far"], http80, "E")}
	b.Write("two.yaml", two)
	b.InForce(1)
	verdicts(t, b, "the allow alone", allowed(p1, narrow, http80), denied(p1, wide, http80, "E"))
	conn := dial(t, p1.Netns, netip.AddrPortFrom(narrow.Addrs[0], 80))
	word(t, conn)
	b.Write("one.yaml", one)
	b.InForce(2)
	verdicts(t, b, "the allow first", both...)
	if silent(conn) != nil {
		t.Error("a connection from before the deny goes on")
	}
	b.Remove("two.yaml")
	b.InForce(1)
	b.Write("two.yaml", two)
	b.InForce(2)
	verdicts(t, b, "the deny first", both...)
	b.Remove("two.yaml")
	for _, spec := range []string{deny + ", " + allow, allow + ", " + deny} {
		b.Write("one.yaml", "")
		b.InForce(0)
		b.Write("one.yaml", ciliumYAML("one", "p1", spec))
		b.InForce(1)
		verdicts(t, b, spec, both...)
	}
}

// A clusterwide deny of a block holds against rules of others that name a part of
// it or everybody, also where they isolate nobody.
func TestG03_AWideDenyHoldsWhereANarrowerPrefixIsKnown(t *testing.T) {
	env := testutils.Kernel(t)
	host := func(name string, n int) lab.Host {
		return lab.Host{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("1.1.1.%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", n))}}
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{host("known", 2), host("other", 3), outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", ""),
	}})
	p1, hosts := addPod(b, "x", "p1"), hostEnds(b, http80)
	deny := clusterwide(ciliumYAML("deny", "p1", "egressDeny: [{toCIDR: [1.1.1.0/24, '2001:db8:1::/64']}], enableDefaultDeny: {egress: false}"))
	for _, spec := range []string{
		"egress: [{toCIDR: [1.1.1.2/32, '2001:db8:1::2/128']}], enableDefaultDeny: {egress: false}",
		"egress: [{toCIDRSet: [{cidr: 1.1.1.2/31}, {cidr: '2001:db8:1::2/127'}], toPorts: [{ports: [{port: '80'}]}]}], enableDefaultDeny: {egress: false}",
		"egress: [{toEntities: [all]}]", "egress: [{toEntities: [world]}]",
		"egress: [{toPorts: [{ports: [{port: '80', protocol: TCP}]}]}]",
	} {
		apply(b, ciliumYAML("known", "p1", spec))
		verdicts(t, b, "without the deny: "+spec, cell{from: p1, to: hosts["known"], port: http80, want: "."})
		apply(b, deny, ciliumYAML("known", "p1", spec))
		verdicts(t, b, spec, cell{from: p1, to: hosts["known"], port: http80, want: "E", by: gen.RulePolicy},
			cell{from: p1, to: hosts["other"], port: http80, want: "E", by: gen.RulePolicy}, cell{from: p1, to: hosts["ext"], port: http80, want: "."})
	}
}

// A selector of nodes selects no pod, whatever labels that has.
func TestG15_APodIsNoNode(t *testing.T) {
	env := testutils.Kernel(t)
	far := outHost("far", 77)
	balancer := func(h lab.Host) string {
		return strings.Replace(nodeYAML(h), "}\nstatus", ", labels: {role: lb}}\nstatus", 1)
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{far, outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "same", "role=lb", "") + box.PodYAML("y", "there", "role=lb", "") +
			namespaceYAML("y", "a, role: lb") + balancer(far),
	}})
	p1, same, there, hosts := addPod(b, "x", "p1", http80), addPod(b, "x", "same", http80), addPod(b, "y", "there", http80), hostEnds(b, http80)
	for _, policy := range []string{
		ciliumYAML("nodes", "p1", "ingress: [{fromNodes: [{matchLabels: {role: lb}}]}], egress: [{toNodes: [{matchLabels: {role: lb}}]}]"),
		clusterwide(ciliumYAML("nodes", "p1", "ingress: [{fromNodes: [{matchExpressions: [{key: role, operator: Exists}]}]}], egress: [{toNodes: [{}]}]")),
	} {
		apply(b, policy)
		verdicts(t, b, policy, allowed(hosts["far"], p1, http80), allowed(p1, hosts["far"], http80),
			denied(same, p1, http80, "I"), denied(there, p1, http80, "I"), denied(hosts["ext"], p1, http80, "I"),
			denied(p1, same, http80, "E"), denied(p1, there, http80, "E"), denied(p1, hosts["ext"], http80, "E"))
	}
	apply(b, ciliumYAML("pods", "p1", "ingress: [{fromEndpoints: [{matchLabels: {role: lb}}]}]")) // and the other way round
	verdicts(t, b, "pods by that label", allowed(same, p1, http80), denied(hosts["far"], p1, http80, "I"))
}

// A label that leaves a namespace leaves its pods, as subjects and as peers,
// without a restart of anybody.
func TestB17_ALabelThatLeavesANamespaceLeavesItsPods(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("y", "p2", "", ""), "y.yaml": namespaceYAML("y", "a"),
		"policies.yaml": policyYAML("x", "peer", "p1", "ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]") +
			strings.Replace(clusterwide(ciliumYAML("subject", "p2", "ingress: [{}]")), "{pod: p2}", "{'k8s:io.cilium.k8s.namespace.labels.team': a}", 1),
	}})
	p1, p2 := addPod(b, "x", "p1", http80), addPod(b, "y", "p2", http80)
	b.InForce(2)
	endpoint, before := identityOf(t, b, "y/p2")
	with := []cell{allowed(p2, p1, http80), denied(p1, p2, http80, "I")}
	verdicts(t, b, "with the label", with...)
	for _, text := range []string{
		"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: y}\n", "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: y, labels: {kept: a}}\n", namespaceYAML("y", "b"), "", // the last: the namespace is deleted
	} {
		conn := dial(t, p2.Netns, netip.AddrPortFrom(p1.Addrs[0], 80))
		word(t, conn)
		b.Write("y.yaml", text)
		soon(t, "denied as a peer", func() bool { return stops(b, p2, p1, http80) })
		soon(t, "let be as a subject", func() bool { return passes(b, p1, p2, http80) })
		verdicts(t, b, "without the label", denied(p2, p1, http80, "I"), cell{from: p1, to: p2, port: http80, want: ".", by: gen.RuleNotIsolated})
		if e, now := identityOf(t, b, "y/p2"); e != endpoint || now == before {
			t.Errorf("endpoint %d had identity %d, endpoint %d has %d", endpoint, before, e, now)
		}
		if silent(conn) != nil {
			t.Error("a connection from before goes on")
		}
		b.Write("y.yaml", namespaceYAML("y", "a"))
		soon(t, "allowed again as a peer", func() bool { return passes(b, p2, p1, http80) })
		soon(t, "selected again", func() bool { return stops(b, p1, p2, http80) })
		verdicts(t, b, "with the label again", with...)
	}
}

// Labels of a pod that runs count as soon as they change.
func TestB18_LabelsOfARunningPodCount(t *testing.T) {
	env := testutils.Kernel(t)
	peer := "ingress: [{from: [{podSelector: {matchLabels: {role: frontend}}}]}]"
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", ""), "p1.yaml": box.PodYAML("x", "p1", "", ""),
		"policies.yaml": policyYAML("x", "peer", "web", peer) + strings.Replace(policyYAML("x", "subject", "p1", "policyTypes: [Ingress]"), "{pod: p1}", "{role: frontend}", 1),
	}})
	web, p1 := addPod(b, "x", "web", http80), addPod(b, "x", "p1", http80)
	b.InForce(2)
	endpoint, _ := identityOf(t, b, "x/p1")
	verdicts(t, b, "no role", denied(p1, web, http80, "I"), cell{from: web, to: p1, port: http80, want: ".", by: gen.RuleNotIsolated})
	for range 2 {
		b.Write("p1.yaml", box.PodYAML("x", "p1", "role=frontend", ""))
		soon(t, "allowed with the role", func() bool { return passes(b, p1, web, http80) })
		soon(t, "selected with the role", func() bool { return stops(b, web, p1, http80) })
		verdicts(t, b, "with the role", allowed(p1, web, http80), denied(web, p1, http80, "I"))
		_, with := identityOf(t, b, "x/p1")
		conn := dial(t, p1.Netns, netip.AddrPortFrom(web.Addrs[0], 80))
		word(t, conn)
		b.Write("p1.yaml", box.PodYAML("x", "p1", "", ""))
		soon(t, "denied without the role", func() bool { return stops(b, p1, web, http80) })
		soon(t, "let be without the role", func() bool { return passes(b, web, p1, http80) })
		verdicts(t, b, "without the role", denied(p1, web, http80, "I"), cell{from: web, to: p1, port: http80, want: ".", by: gen.RuleNotIsolated})
		if silent(conn) != nil {
			t.Error("a connection from before goes on")
		}
		if e, now := identityOf(t, b, "x/p1"); e != endpoint || now == with {
			t.Errorf("endpoint %d had identity %d, endpoint %d has %d", endpoint, with, e, now)
		}
	}
}

// A pod that has ended gives its labels to nobody who gets its address, neither
// on this node nor on another one.
func TestB19_AnEndedPodOwnsNoAddress(t *testing.T) {
	env := testutils.Kernel(t)
	remote := outHost("remote", 50)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{remote}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", "") + box.PodYAML("x", "open", "", ""), "a.yaml": box.PodYAML("x", "a", "role=old", ""), "b.yaml": box.PodYAML("x", "b", "role=new", ""),
		"policies.yaml": policyYAML("x", "peer", "web", "ingress: [{from: [{podSelector: {matchLabels: {role: old}}}]}]") +
			policyYAML("x", "other", "open", "ingress: [{from: [{podSelector: {matchLabels: {role: new}}}]}]") +
			strings.Replace(policyYAML("x", "subject", "a", "policyTypes: [Ingress]"), "{pod: a}", "{role: old}", 1),
	}})
	web, open := addPod(b, "x", "web", http80), addPod(b, "x", "open", http80)
	old := b.Add(lab.Pod{Namespace: "x", Name: "a", UID: "1", Ports: []lab.Port{http80}})
	b.InForce(3)
	a := podEnd(old)
	verdicts(t, b, "while it runs", allowed(a, web, http80), denied(a, open, http80, "I"), denied(web, a, http80, "I"))
	if err := b.DelPod(t.Context(), old.Key()); err != nil {
		t.Fatal(err)
	}
	b.Write("a.yaml", endedPod(box.PodYAML("x", "a", "role=old", ""), "box", old.Addresses))
	next := b.Add(lab.Pod{Namespace: "x", Name: "b", UID: "2", IPs: old.Addresses, Ports: []lab.Port{http80}})
	if fmt.Sprint(next.Addresses) != fmt.Sprint(old.Addresses) {
		t.Fatalf("the new pod has %v, the old one had %v", next.Addresses, old.Addresses)
	}
	n := podEnd(next)
	cells := []cell{denied(n, web, http80, "I"), allowed(n, open, http80), {from: web, to: n, port: http80, want: ".", by: gen.RuleNotIsolated}}
	verdicts(t, b, "its address has another pod", cells...)
	b.Write("a.yaml", endedPod(box.PodYAML("x", "a", "role=old,seen=yes", ""), "box", old.Addresses))
	revisit(t, b)
	verdicts(t, b, "its object changes", cells...)
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	restart(t, b)
	b.Eventually("all endpoints ready", allReady(t, b, 3))
	verdicts(t, b, "after a restart", cells...)

	far := hostEnds(b)["remote"]
	b.Write("far.yaml", runningPod(box.PodYAML("x", "far-b", "role=new", ""), "elsewhere", far.Addrs))
	soon(t, "a pod on another node is known", func() bool { return passes(b, far, open, http80) })
	cells = []cell{denied(far, web, http80, "I"), allowed(far, open, http80)}
	for _, name := range []string{"far-a", "far-c"} {
		b.Write("gone.yaml", endedPod(box.PodYAML("x", name, "role=old", ""), "elsewhere", far.Addrs))
		revisit(t, b)
		verdicts(t, b, "on another node, of which "+name+" has ended", cells...)
	}
	b.Write("gone.yaml", runningPod(box.PodYAML("x", "far-c", "role=old", ""), "elsewhere", far.Addrs)) // that it could have been seen
	soon(t, "the address changes its owner", func() bool { return passes(b, far, web, http80) })
	verdicts(t, b, "the other one runs", allowed(far, web, http80), denied(far, open, http80, "I"))
	b.Write("gone.yaml", endedPod(box.PodYAML("x", "far-c", "role=old", ""), "elsewhere", far.Addrs))
	soon(t, "the address goes back", func() bool { return passes(b, far, open, http80) })
	verdicts(t, b, "the other one has ended", cells...)
}

// A map with room for 1024 lines and 3000 identities: a rule about everybody is one
// line; where there is no room, what denies goes in first and the endpoint says so;
// and the map shrinks with the identities.
func TestB41_AFullPolicyMapStillDeniesAndShrinksAgain(t *testing.T) {
	env := testutils.Kernel(t)
	const room, crowd, kept, groups = 1024, 3000, 100, 6
	files := map[string]string{"pods.yaml": box.PodYAML("x", "web", "", "")}
	hosts := []lab.Host{outHost("crowd-0", 10), outHost("crowd-1", 11)}
	for i := range crowd {
		addr := fmt.Sprintf("10.99.%d.%d", i/250, i%250+1)
		if i < len(hosts) {
			addr = hosts[i].Addresses[0].String()
		}
		name := fmt.Sprintf("crowd-%d.yaml", (i-kept+250)/250) // the first file has those that stay
		if i < kept {
			name = "kept.yaml"
		}
		files[name] += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: c%d, namespace: crowd, labels: {n: n%d, group: g%d}}\n"+
			"spec: {nodeName: elsewhere, containers: [{name: c, image: i}]}\nstatus: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}\n", i, i, i%groups, addr, addr)
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: hosts, AgentFlags: []string{fmt.Sprintf("--policy-entries=%d", room)}, Files: files})
	pod := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	web, ends := podEnd(pod), hostEnds(b)
	one, two := only4(ends["crowd-0"]), only4(ends["crowd-1"])
	settled := func(what string, degraded bool) {
		t.Helper()
		b.Eventually(what, func() bool {
			c, s := component(t, b, "policy-map")
			e := endpointOf(t, b, pod)
			return e.State == gen.EndpointReady && e.Policy.Degraded == degraded && (s.Endpoints.Degraded == 1) == degraded && (c.State == gen.StateFailing) == degraded
		})
	}
	identities := func() map[uint32]bool {
		list, err := b.Agent.Identities(t.Context(), []string{"k8s:io.kubernetes.pod.namespace=crowd"})
		if err != nil {
			t.Fatal(err)
		}
		known := map[uint32]bool{}
		for _, id := range list {
			known[id.ID] = true
		}
		return known
	}
	if n := len(identities()); n != crowd {
		t.Fatalf("%d identities, want %d", n, crowd)
	}

	apply(b, ciliumYAML("everybody", "web", "ingress: [{fromEntities: [all], toPorts: [{ports: [{port: '80', protocol: TCP}]}]}]"))
	settled("a rule about everybody", false)
	if n := len(dumped(t, b, pod)); n > 8 {
		t.Errorf("a rule about everybody has %d lines", n)
	}
	verdicts(t, b, "everybody", allowed(one, web, http80), allowed(two, web, http80))

	const peer = "{'k8s:io.kubernetes.pod.namespace': crowd%s}"
	rules := fmt.Sprintf("ingress: [{fromEndpoints: [{matchLabels: "+peer+"}], toPorts: [{ports: [{port: '80', protocol: TCP}]}]}], ", "") +
		fmt.Sprintf("ingressDeny: [{fromEndpoints: [{matchLabels: "+peer+"}]}]", ", group: g0")
	apply(b, ciliumYAML("crowd", "web", rules))
	settled("the map is full", true)
	denies, lines := 0, dumped(t, b, pod)
	for k, e := range lines {
		if k.Identity != 0 && e.Deny {
			denies++
		}
	}
	if denies != crowd/groups || len(lines) != room {
		t.Errorf("of %d lines %d deny, want %d of %d", len(lines), denies, crowd/groups, room)
	}
	refused := []cell{{from: one, to: web, port: http80, want: "I", by: gen.RulePolicy}, denied(two, web, http81, "I")}
	verdicts(t, b, "full", refused...)

	gone := func(left int, names ...string) {
		t.Helper()
		for _, name := range names {
			b.Remove(name)
		}
		b.Eventually(fmt.Sprintf("%d identities are left", left), func() bool { return len(identities()) == left })
	}
	gone(crowd-1000, "crowd-1.yaml", "crowd-2.yaml", "crowd-3.yaml", "crowd-4.yaml")
	settled("the map is still full", true)
	b.Eventually("the map has lines of those that are left only", func() bool {
		known, lines := identities(), dumped(t, b, pod)
		for k := range lines {
			if k.Identity >= 256 && !known[k.Identity] {
				return false
			}
		}
		return len(lines) == room
	})
	gone(kept, "crowd-5.yaml", "crowd-6.yaml", "crowd-7.yaml", "crowd-8.yaml", "crowd-9.yaml", "crowd-10.yaml", "crowd-11.yaml", "crowd-12.yaml")
	settled("there is room again", false)
	if n := len(dumped(t, b, pod)); n < kept || n > kept+8 {
		t.Errorf("%d lines are left for %d identities", n, kept)
	}
	verdicts(t, b, "room again", append(refused, allowed(two, web, http80))...)
	gone(0, "kept.yaml")
	b.Eventually("the map has no line of any of them", func() bool { return len(dumped(t, b, pod)) <= 8 })
	settled("nobody is left", false)
}
