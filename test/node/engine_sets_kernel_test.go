package node

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// given is a policy's spec and what becomes of TCP/80 and TCP/81 of either family.
type given struct {
	policy, want string
}

// hold puts one policy for each pod in force through the API and checks them all,
// also after the agent has read them again from disk.
func hold(t *testing.T, b *box.Box, cases []given, pods []*lab.AttachedPod, check func(pod *lab.AttachedPod, g given)) {
	t.Helper()
	var text strings.Builder
	for i, g := range cases {
		text.WriteString(strings.ReplaceAll(g.policy, "POD", fmt.Sprintf("c%d", i)))
	}
	if _, err := b.Agent.PutPolicy(t.Context(), "put.yaml", []byte(text.String())); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"put through the API", "read from disk"} {
		t.Log(when)
		b.InForce(len(cases))
		b.Eventually("all endpoints ready", allReady(t, b, len(b.Record.Pods)))
		for i, g := range cases {
			check(pods[i], g)
		}
		if err := b.StopAgent(); err != nil {
			t.Fatal(err)
		}
		restart(t, b)
	}
}

// numbered attaches a pod for each case.
func numbered(b *box.Box, n int) (pods []*lab.AttachedPod) {
	for i := range n {
		pods = append(pods, b.Add(lab.Pod{Namespace: "x", Name: fmt.Sprintf("c%d", i), Ports: []lab.Port{http80, http81}}))
	}
	return pods
}

func numberedYAML(n int) string {
	var out strings.Builder
	for i := range n {
		out.WriteString(box.PodYAML("x", fmt.Sprintf("c%d", i), "", ""))
	}
	return out.String()
}

// A list that is empty is nobody in cilium.io, and everybody for Kubernetes.
func TestB15_EmptyListsMeanWhatTheirDialectSays(t *testing.T) {
	env := testutils.Kernel(t)
	cnp := func(spec, want string) given { return given{ciliumYAML("POD", "POD", spec), want} }
	np := func(spec, want string) given { return given{policyYAML("x", "POD", "POD", spec), want} }
	const at80 = ", toPorts: [{ports: [{port: '80'}]}]"
	cases := []given{
		cnp("ingress: [{fromCIDR: []"+at80+"}]", "II"), cnp("ingress: [{fromEndpoints: []"+at80+"}]", "II"), cnp("ingress: [{fromEntities: []"+at80+"}]", "II"),
		cnp("ingress: [{fromCIDR: []}]", "II"), cnp("ingress: [{fromEndpoints: []}]", "II"), cnp("ingress: [{fromEntities: []}]", "II"),
		cnp("ingress: [{fromCIDRSet: []}]", "II"), cnp("ingress: [{fromNodes: []}]", "II"), cnp("ingress: [{fromCIDR: [], fromEndpoints: [], fromEntities: []}]", "II"),
		cnp("ingress: [{toPorts: [{ports: [{port: '80'}]}]}]", ".I"), cnp("ingress: [{}]", "II"), cnp("ingress: [], egress: [{}]", ".."),
		np("ingress: [{from: []}]", ".."), np("ingress: [{from: [], ports: [{port: 80}]}]", ".I"), np("ingress: []", "II"), np("ingress: [{}]", ".."),
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": numberedYAML(len(cases)) + box.PodYAML("x", "peer", "", ""),
	}})
	pods := numbered(b, len(cases))
	peer, ext := b.Add(lab.Pod{Namespace: "x", Name: "peer"}), b.Record.Hosts[0]
	for _, text := range []string{"ingress: []", "ingress: [], egress: []", "ingressDeny: []"} {
		_, err := b.Agent.PutPolicy(t.Context(), "empty.yaml", []byte(ciliumYAML("empty", "peer", text)))
		if err == nil || !strings.Contains(err.Error(), "has no rule") {
			t.Errorf("%s: %v", text, err)
		}
	}
	b.InForce(0)
	hold(t, b, cases, pods, func(pod *lab.AttachedPod, g given) {
		for _, from := range []lab.Source{podSource(peer), hostSource(ext)} {
			if got := letters(t, b, from, pod.Name, pod.Addresses, http80, http81); got != g.want+g.want {
				t.Errorf("from %s: %q, want %q twice: %s", from.Name, got, g.want, g.policy)
			}
		}
	})
}

// What resolves to nobody opens nothing: no line for anybody comes into the map.
func TestG05_WhatResolvesToNothingAllowsNobody(t *testing.T) {
	env := testutils.Kernel(t)
	var cases []given
	for _, peer := range []string{
		"CIDRSet: [{cidrGroupRef: missing}]", "CIDRSet: [{cidrGroupRef: empty}]", "CIDRSet: [{cidrGroupSelector: {matchLabels: {who: nobody}}}]", "CIDRSet: []",
		"Services: [{k8sService: {serviceName: missing, namespace: x}}]", "Services: [{k8sService: {serviceName: empty, namespace: x}}]",
		"Services: [{k8sServiceSelector: {selector: {matchLabels: {who: nobody}}}}]", "Services: []", "Nodes: [{matchLabels: {role: none}}]", "Nodes: []",
		"Endpoints: []", "Endpoints: [{matchLabels: {who: nobody}}]", "CIDR: []", "Entities: []", "Entities: [none]",
	} {
		for _, ports := range []string{"", ", toPorts: [{ports: [{port: '80'}]}]"} {
			cases = append(cases, given{ciliumYAML("POD", "POD", "egress: [{to"+peer+ports+"}]"), "EE"})
		}
	}
	nothing := len(cases) // a deny of nobody denies nobody
	for _, peer := range []string{"CIDRSet: [{cidrGroupRef: missing}]", "Services: [{k8sService: {serviceName: missing, namespace: x}}]", "Nodes: []", "Entities: [none]"} {
		cases = append(cases, given{ciliumYAML("POD", "POD", "egressDeny: [{to"+peer+"}], enableDefaultDeny: {egress: false}"), ".."})
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": numberedYAML(len(cases)),
		"refs.yaml": "apiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: empty}\nspec: {externalCIDRs: []}\n---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: empty, namespace: x}\nspec: {ports: [{port: 80}]}\n",
	}})
	pods := numbered(b, len(cases))
	ext := hostEnds(b, http80, http81)["ext"]
	for _, peer := range []string{"toGroups: []", "toFQDNs: []"} {
		_, err := b.Agent.PutPolicy(t.Context(), "groups.yaml", []byte(ciliumYAML("groups", "c0", "egress: [{"+peer+"}]")))
		if err == nil || !strings.Contains(err.Error(), "not supported yet") {
			t.Errorf("%s: %v", peer, err)
		}
	}
	hold(t, b, cases, pods, func(pod *lab.AttachedPod, g given) {
		if got := letters(t, b, podSource(pod), "ext", ext.Addrs, http80, http81); got != g.want+g.want {
			t.Errorf("%q, want %q twice: %s", got, g.want, g.policy)
		}
		for k, e := range dumped(t, b, pod) {
			if k.Direction == 1 && k.Identity == 0 && !e.Deny && !slices.ContainsFunc(cases[nothing:], func(o given) bool { return o == g }) {
				t.Errorf("the map has the line %+v for anybody: %s", k, g.policy)
			}
		}
	})
}

// A list of a number, a name and a name that nobody gives is enforced as far as it
// goes, and the name is told of.
func TestB06_NumbersAndNamesInOneListOfPorts(t *testing.T) {
	env := testutils.Kernel(t)
	labelled := func(policy string) string { return strings.Replace(policy, "{pod: late}", "{role: late}", 1) }
	const list = "toPorts: [{ports: [{port: '8080'}, {port: http}, {port: nowhere}]}]"
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "named", "role=late", "http=80") + box.PodYAML("x", "plain", "role=late", ""),
		"policies.yaml": labelled(ciliumYAML("in", "late", "ingress: [{"+list+"}]")) +
			ciliumYAML("out", "p1", "egress: [{toEndpoints: [{}], "+list+"}]"),
	}})
	b.InForce(2)
	ports := []lab.Port{http80, http81, tcpPort(8080)}
	p1 := addPod(b, "x", "p1")
	named, plain := addPod(b, "x", "named", ports...), addPod(b, "x", "plain", ports...)
	verdicts(t, b, "both forms", allowed(p1, named, http80), allowed(p1, named, tcpPort(8080)), denied(p1, named, http81, "B"),
		denied(p1, plain, http80, "B"), allowed(p1, plain, tcpPort(8080)), denied(p1, plain, http81, "B"))
	b.Eventually("the status names the port", func() bool {
		c, s := component(t, b, "port-names")
		return c.State == gen.StateWarning && s.Verdict == gen.StateWarning && c.Breaks == gen.BreaksNothing && strings.Contains(c.Message, `"nowhere"`)
	})
	for _, pod := range []string{"x/p1", "x/named", "x/plain"} {
		e, err := b.Agent.Endpoint(t.Context(), "pod-name:"+pod)
		if err != nil || e.State != gen.EndpointReady || e.StateReason != "" || e.Policy.Degraded {
			t.Errorf("%s: %+v, %v", pod, e, err)
		}
		log, err := b.Agent.EndpointLog(t.Context(), "pod-name:"+pod)
		for _, l := range log {
			if l.Code == gen.LogEntryCode("failure") {
				t.Errorf("%s: %s", pod, l.Message)
			}
		}
		if err != nil || len(log) == 0 || len(log) > 30 {
			t.Errorf("%s has %d lines of log, %v", pod, len(log), err)
		}
	}
	b.Write("policies.yaml", labelled(ciliumYAML("in", "late", "ingress: [{toPorts: [{ports: [{port: '8080'}, {port: http}]}]}]")))
	b.InForce(1)
	if c, _ := component(t, b, "port-names"); c.State != gen.StateOk { // one of the two pods gives the name
		t.Errorf("without the name nobody gives: %+v", c)
	}
}

// A service's address is translated before its packets are judged. Rules are about
// the pod behind it and that pod's port; a rule about the service's address opens
// nothing.
func TestB08_ThePodBehindAServiceIsJudged(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "dns", "app=dns", ""),
	}})
	p1, dns := addPod(b, "x", "p1"), addPod(b, "x", "dns", udp53, http80)
	vips := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}
	translate(t, p1.Netns, fmt.Sprintf(`table inet services {
		chain output {
			type nat hook output priority -100
			ip daddr %[1]s udp dport 53 dnat ip to %[3]s:53
			ip daddr %[1]s tcp dport 8080 dnat ip to %[3]s:80
			ip6 daddr %[2]s udp dport 53 dnat ip6 to [%[4]s]:53
			ip6 daddr %[2]s tcp dport 8080 dnat ip6 to [%[4]s]:80
		}
	}`, vips[0], vips[1], dns.Addrs[0], dns.Addrs[1]))
	np := func(rule string) string {
		return policyYAML("x", "p", "p1", "policyTypes: [Egress], egress: ["+rule+"]")
	}
	cnp := func(rule string) string { return ciliumYAML("p", "p1", "egress: ["+rule+"]") }
	for what, c := range map[string]struct {
		policies []string
		udp, tcp bool // what passes of UDP/53 and TCP/8080 to the service
	}{
		"no policy":                        {nil, true, true},
		"the pod's label":                  {[]string{np("{to: [{podSelector: {matchLabels: {app: dns}}}], ports: [{protocol: UDP, port: 53}]}")}, true, false},
		"the pod's label, cilium.io":       {[]string{cnp("{toEndpoints: [{matchLabels: {app: dns}}], toPorts: [{ports: [{port: '53', protocol: UDP}]}]}")}, true, false},
		"the service's port":               {[]string{np("{ports: [{port: 8080}]}")}, false, false},
		"the service's port, cilium.io":    {[]string{cnp("{toEndpoints: [{matchLabels: {app: dns}}], toPorts: [{ports: [{port: '8080', protocol: TCP}]}]}")}, false, false},
		"the pod's port":                   {[]string{np("{ports: [{port: 80}]}")}, false, true},
		"the service's address":            {[]string{np("{to: " + blocks(vips) + "}")}, false, false},
		"the service's address, cilium.io": {[]string{cnp("{toCIDR: " + single(vips) + "}")}, false, false},
	} {
		apply(b, c.policies...)
		var results []lab.Result
		for i, src := range p1.Addrs {
			for _, port := range []lab.Port{udp53, tcpPort(8080)} {
				results = append(results, lab.Result{From: p1, Flow: lab.Flow{Proto: port.Proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(vips[i], port.Port)}})
			}
		}
		stop := follow(t, b)
		if err := lab.SendProbes(t.Context(), results, lab.ProbeOptions{}); err != nil {
			t.Fatal(err)
		}
		events := stop()
		for i, r := range results {
			want, behind := c.udp, netip.AddrPortFrom(dns.Addrs[i/2], 53)
			if r.Flow.Proto == types.ProtoTCP {
				want, behind = c.tcp, netip.AddrPortFrom(dns.Addrs[i/2], 80)
			}
			denied := slices.ContainsFunc(events, func(e gen.Event) bool {
				f, ok := probe.FlowOf(e)
				return ok && f.Proto == r.Flow.Proto && f.Dst == behind && e.Verdict == gen.VerdictDeny && e.Rule.Kind == gen.RuleDefaultDeny
			})
			if (r.Err == nil) != want || denied == want {
				t.Errorf("%s: %s to %s, which is %s: %v; denied: %t", what, r.Flow.Proto, r.Flow.Dst, behind, r.Err, denied)
			}
		}
	}
}

// translate puts a set of nft rules into a namespace.
func translate(t *testing.T, ns lab.Netns, rules string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	err := ns.Do(func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft: %w: %s", err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Labels of nodes may come at any time at an agent's start: what is in force in
// the end is the same.
func TestG16_LabelsOfNodesMayComeAtAnyTime(t *testing.T) {
	env := testutils.Kernel(t)
	far := outHost("far", 77)
	node := func(labels string) string { return strings.Replace(nodeYAML(far), "}\nstatus", labels+"}\nstatus", 1) }
	const balancer = ", labels: {role: lb}"
	policies := ciliumYAML("nodes", "p1", "ingress: [{fromNodes: [{matchLabels: {role: lb}}]}], egress: [{toNodes: [{matchLabels: {role: lb}}]}]") +
		ciliumYAML("deny", "p2", "ingressDeny: [{fromNodes: [{matchLabels: {role: lb}}]}], enableDefaultDeny: {ingress: false}")
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{far, outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("x", "p2", "", ""),
	}})
	pods := []*lab.AttachedPod{b.Add(lab.Pod{Namespace: "x", Name: "p1", Ports: []lab.Port{http80}}), b.Add(lab.Pod{Namespace: "x", Name: "p2", Ports: []lab.Port{http80}})}
	p1, p2, hosts := podEnd(pods[0]), podEnd(pods[1]), hostEnds(b, http80)
	files := func(nodes, policies string) {
		b.Write("nodes.yaml", nodes)
		b.Write("policies.yaml", policies)
	}
	var want []string
	for what, order := range map[string]struct{ before, after func() }{
		"early":         {func() { files(node(balancer), policies) }, func() {}},
		"late":          {func() { files("", policies) }, func() { files(node(balancer), policies) }},
		"labels late":   {func() { files(node(""), policies) }, func() { files(node(balancer), policies) }},
		"other first":   {func() { files(node(", labels: {role: other}"), policies) }, func() { files(node(balancer), policies) }},
		"twice":         {func() { files(node(balancer), policies) }, func() { files(node(""), policies); revisit(t, b); files(node(balancer), policies) }},
		"policies late": {func() { files(node(balancer), "") }, func() { files(node(balancer), policies) }},
		"both late":     {func() { files("", "") }, func() { files("", policies); revisit(t, b); files(node(balancer), policies) }},
	} {
		if err := b.StopAgent(); err != nil {
			t.Fatal(err)
		}
		b.Write("mark.yaml", "")
		order.before()
		restart(t, b)
		order.after()
		revisit(t, b)
		soon(t, what+": the node is let in", func() bool { return passes(b, hosts["far"], p1, http80) })
		verdicts(t, b, what, allowed(hosts["far"], p1, http80), allowed(p1, hosts["far"], http80), denied(hosts["ext"], p1, http80, "I"), denied(p1, hosts["ext"], http80, "E"),
			cell{from: hosts["far"], to: p2, port: http80, want: "I", by: gen.RulePolicy}, cell{from: hosts["ext"], to: p2, port: http80, want: "."})
		got := inForce(t, b, pods)
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: in force is\n%s\nand in another order\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if len(want) < 10 {
		t.Errorf("little is in force: %q", want)
	}
}

// inForce are the policies, but the marks of revisit, and the maps of some pods.
func inForce(t *testing.T, b *box.Box, pods []*lab.AttachedPod) (out []string) {
	t.Helper()
	list, err := b.Agent.Policies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Policies {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if p.Ref.Namespace != "marks" {
			out = append(out, string(text))
		}
	}
	slices.Sort(out)
	for _, p := range pods {
		out = append(out, realized(t, b, p)...)
	}
	return out
}

// A right goes with the object that gives it, whatever kind it is of, and takes
// the connections along that it let through.
func TestG17_ARightGoesWithWhatGivesIt(t *testing.T) {
	env := testutils.Kernel(t)
	far := outHost("far", 77)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{far, outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "p1", "", "") + box.PodYAML("y", "p2", "", ""), "base.yaml": policyYAML("x", "base", "p1", "policyTypes: [Egress]"),
	}})
	p1, hosts := addPod(b, "x", "p1"), hostEnds(b, http80)
	p2, ext := addPod(b, "y", "p2", http80), hosts["ext"]
	b.InForce(1)
	labelled := strings.Replace(nodeYAML(far), "}\nstatus", ", labels: {role: lb}}\nstatus", 1)
	twin := func(name string, at lab.Source) string {
		return runningPod(strings.Replace(box.PodYAML("x", name, "", ""), "    pod: "+name, "    pod: twin", 1), "elsewhere", at.Addrs)
	}
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: pay, namespace: y}\nspec: {ports: [{port: 80}]}\n"
	slice := func(name, family string, a netip.Addr) string {
		return fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, namespace: y, labels: {kubernetes.io/service-name: pay}}\n"+
			"addressType: %s\nports: [{port: 80}]\nendpoints: [{addresses: ['%s']}]\n", name, family, a)
	}
	slices46 := slice("pay-4", "IPv4", ext.Addrs[0]) + slice("pay-6", "IPv6", ext.Addrs[1])
	toService := ciliumYAML("grant", "p1", "egress: [{toServices: [{k8sService: {serviceName: pay, namespace: y}}]}]")
	for what, c := range map[string]struct {
		files map[string]string // "grant.yaml" is the one that goes
		to    lab.Source
	}{
		"NetworkPolicy":                  {map[string]string{"grant.yaml": policyYAML("x", "grant", "p1", "egress: [{to: [{namespaceSelector: {}}]}]")}, p2},
		"a NetworkPolicy of a block":     {map[string]string{"grant.yaml": policyYAML("x", "grant", "p1", "egress: [{to: "+blocks(ext.Addrs)+"}]")}, ext},
		"CiliumNetworkPolicy":            {map[string]string{"grant.yaml": ciliumYAML("grant", "p1", "egress: [{toEntities: [world]}]")}, ext},
		"CiliumClusterwideNetworkPolicy": {map[string]string{"grant.yaml": clusterwide(ciliumYAML("grant", "p1", "egress: [{toEndpoints: [{}]}]"))}, p2},
		"ClusterNetworkPolicy": {map[string]string{"grant.yaml": "apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: grant}\n" +
			"spec: {tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Accept, to: [{namespaces: {}}]}]}\n"}, p2},
		"CiliumCIDRGroup": {map[string]string{"policy.yaml": ciliumYAML("grant", "p1", "egress: [{toCIDRSet: [{cidrGroupRef: partners}]}]"),
			"grant.yaml": groupYAML("partners", "203.0.113.9/32", "2001:db8::9/128")}, ext},
		"Service":        {map[string]string{"policy.yaml": toService, "slices.yaml": slices46, "grant.yaml": service}, ext},
		"EndpointSlices": {map[string]string{"policy.yaml": toService, "service.yaml": service, "grant.yaml": slices46}, ext},
		"Node":           {map[string]string{"policy.yaml": ciliumYAML("grant", "p1", "egress: [{toNodes: [{matchLabels: {role: lb}}]}]"), "grant.yaml": labelled}, hosts["far"]},
		"Namespace": {map[string]string{"policy.yaml": policyYAML("x", "grant", "p1", "egress: [{to: [{namespaceSelector: {matchLabels: {team: blue}}}]}]"),
			"grant.yaml": namespaceYAML("y", "blue")}, p2},
		// Another one of the same labels stays, so that the policy map of nobody changes.
		"one Pod of two": {map[string]string{"policy.yaml": policyYAML("x", "grant", "p1", "egress: [{to: [{podSelector: {matchLabels: {pod: twin}}}]}]"),
			"twin.yaml": twin("a", ext), "grant.yaml": twin("b", hosts["far"])}, hosts["far"]},
	} {
		for _, name := range slices.Sorted(maps.Keys(c.files)) {
			b.Write(name, c.files[name])
		}
		withdraws(t, b, what, p1, c.to, func() { b.Remove("grant.yaml") })
		if c.files["twin.yaml"] != "" {
			verdicts(t, b, what+": the other one stays", allowed(p1, ext, http80))
		}
		for name := range c.files {
			if name != "grant.yaml" {
				b.Remove(name)
			}
		}
		b.InForce(1)
	}
	if _, err := b.Agent.PutPolicy(t.Context(), "grant.yaml", []byte(ciliumYAML("grant", "p1", "egress: [{toEntities: [all]}]"))); err != nil {
		t.Fatal(err)
	}
	withdraws(t, b, "a policy of the API", p1, ext, func() {
		if _, err := b.Agent.DeletePolicy(t.Context(), "CiliumNetworkPolicy", "x", "grant"); err != nil {
			t.Fatal(err)
		}
	})
}

// withdraws checks that one change, and nothing else, takes a right away.
func withdraws(t *testing.T, b *box.Box, what string, from, to lab.Source, change func()) {
	t.Helper()
	soon(t, what+" gives the right", func() bool { return passes(b, from, to, http80) })
	verdicts(t, b, what, allowed(from, to, http80))
	var conns []net.Conn
	for _, a := range to.Addrs {
		conn := dial(t, from.Netns, netip.AddrPortFrom(a, 80))
		word(t, conn)
		conns = append(conns, conn)
	}
	change()
	for _, conn := range conns { // before anything else is sent or asked
		soon(t, "the connection to "+conn.RemoteAddr().String()+" goes with "+what, func() bool { return silent(conn) == nil })
	}
	soon(t, "the right goes with "+what, func() bool { return stops(b, from, to, http80) })
	verdicts(t, b, "without "+what, denied(from, to, http80, "E"))
	for _, conn := range conns {
		if silent(conn) != nil {
			t.Errorf("the connection to %s that %s let through is back", conn.RemoteAddr(), what)
		}
	}
}

// A write into a policy map fails once: what is there after the retry is what
// would be there without the failure.
func TestB54_ARetryAfterAFailedWriteLeavesTheWholePolicy(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--policy-check=1h"}, Hosts: []lab.Host{outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", "") + box.PodYAML("x", "client", "role=client", ""), "web.yaml": webOnly,
	}})
	server := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80, http81}})
	web, client, ext := podEnd(server), addPod(b, "x", "client"), hostEnds(b)["ext"]
	const nobody = "{from: [{podSelector: {matchLabels: {pod: none}}}]}"
	whole := policyYAML("x", "wide", "web", "ingress: ["+nobody+", {from: "+blocks(ext.Addrs)+", ports: [{port: 80}, {port: 81}]}]")
	b.Write("wide.yaml", whole)
	b.InForce(2)
	want := realized(t, b, server)
	b.Write("wide.yaml", policyYAML("x", "wide", "web", "ingress: ["+nobody+"]"))
	b.InForce(2)
	slot := endpointOf(t, b, server).Policy.Slot
	tamper(t, b, server, func(m *ebpf.Map, _ [][]byte) error { // no room for another line
		k := make([]byte, 12)
		binary.NativeEndian.PutUint32(k, 64)
		for i := range m.MaxEntries() {
			binary.BigEndian.PutUint32(k[4:], 0xff000000+i)
			if m.Put(k, make([]byte, 24)) != nil {
				return nil
			}
		}
		return errors.New("the map has room without end")
	})
	b.Write("wide.yaml", whole)
	b.InForce(2)
	if got := realized(t, b, server); !slices.Equal(got, want) {
		t.Errorf("after the retry the map has\n%s\nand without a failure\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	verdicts(t, b, "after the retry", allowed(ext, web, http80), allowed(ext, web, http81), allowed(client, web, http80))
	log, err := b.Agent.EndpointLog(t.Context(), "pod-name:x/web")
	failed := slices.ContainsFunc(log, func(l gen.LogEntry) bool {
		return strings.Contains(l.Message, fmt.Sprintf("change policy slot %d in place", slot))
	})
	if err != nil || !failed {
		t.Errorf("no write failed: %v, %+v", err, log)
	}
}

// Lines that somebody takes out of a policy map or puts into it do not last.
func TestB54_ThePolicyMapIsMended(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--policy-check=1s"}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", "") + box.PodYAML("x", "client", "role=client", "") + box.PodYAML("x", "stranger", "", ""), "web.yaml": webOnly,
	}})
	server := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	web, client, stranger := podEnd(server), addPod(b, "x", "client"), addPod(b, "x", "stranger")
	b.InForce(1)
	whole := dumped(t, b, server)
	asItWas := func() bool { return maps.Equal(dumped(t, b, server), whole) }
	check := func(when string) {
		t.Helper()
		verdicts(t, b, when, allowed(client, web, http80), denied(stranger, web, http80, "I"))
	}
	check("before")
	changed := 0
	for what, change := range map[string]func(m *ebpf.Map, keys [][]byte) error{
		"all lines are gone": func(m *ebpf.Map, keys [][]byte) (err error) {
			for _, k := range keys {
				err = errors.Join(err, m.Delete(k))
			}
			return err
		},
		"one line is gone": func(m *ebpf.Map, keys [][]byte) error { return m.Delete(keys[0]) },
		"a line lets everybody in": func(m *ebpf.Map, keys [][]byte) error {
			anybody, strongest := make([]byte, 12), make([]byte, 24)
			binary.NativeEndian.PutUint32(anybody, 40) // identity and direction count (policymap)
			binary.NativeEndian.PutUint64(strongest, 1<<62)
			return m.Put(anybody, strongest)
		},
	} {
		tamper(t, b, server, func(m *ebpf.Map, keys [][]byte) error {
			defer func() { changed += len(keys) }()
			return change(m, keys)
		})
		b.Eventually(what+", and it is mended", asItWas)
		check(what)
	}
	if changed < 3*len(whole) {
		t.Errorf("%d lines were there to be touched", changed)
	}
	log, err := os.ReadFile(b.LogFile())
	if n := strings.Count(string(log), "Policy maps were changed from outside"); err != nil || n < 3 {
		t.Errorf("the log tells of %d changes, %v", n, err)
	}
}

// Entries of the ipcache that somebody takes away do not stay away.
func TestB54_TheIPCacheIsMended(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--policy-check=1s"}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "", ""), "web.yaml": strings.Replace(webOnly, "podSelector: {matchLabels: {role: client}}", "ipBlock: {cidr: 203.0.113.0/24}", 1),
	}})
	b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	b.InForce(1)
	m, err := ebpf.LoadPinnedMap(bpf.Root{Path: b.Record.BPFRoot}.Map(ipcachemap.Name), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	entries := func() map[string]string {
		out := map[string]string{}
		var k, v []byte
		for all := m.Iterate(); all.Next(&k, &v); {
			out[string(k)] = string(v)
		}
		return out
	}
	block := func(all map[string]string) bool {
		for k := range all {
			if strings.Contains(k, "\xcb\x00\x71\x00") {
				return true
			}
		}
		return false
	}
	b.Eventually("the block is there", func() bool { return block(entries()) })
	whole := entries()
	for k := range whole {
		if err := m.Delete([]byte(k)); err != nil {
			t.Fatal(err)
		}
	}
	b.Eventually("the entries are back", func() bool { return maps.Equal(entries(), whole) })
	log, err := os.ReadFile(b.LogFile())
	if err != nil || !strings.Contains(string(log), "The ipcache map was changed from outside") {
		t.Errorf("the log does not tell, %v", err)
	}
}
