package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// egressYAML is a CiliumNetworkPolicy of namespace x for the pod p1 with one
// egress element.
func egressYAML(name, element string) string {
	return fmt.Sprintf("---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: %s, namespace: x}\nspec:\n"+
		"  endpointSelector: {matchLabels: {pod: p1}}\n  log: {value: 'of %s'}\n  egress:\n  - %s\n", name, name, element)
}

// groupYAML is a CiliumCIDRGroup.
func groupYAML(name string, blocks ...string) string {
	return fmt.Sprintf("---\napiVersion: cilium.io/v2\nkind: CiliumCIDRGroup\nmetadata: {name: %s}\nspec: {externalCIDRs: ['%s']}\n", name, strings.Join(blocks, "', '"))
}

// revised makes a change of what policies name and waits until it is in force.
func revised(b *box.Box, what string, change func()) {
	before, err := b.Agent.PolicyRevision(context.Background())
	change()
	b.Eventually(what+" is in force", func() bool {
		now, err2 := b.Agent.PolicyRevision(context.Background())
		return err == nil && err2 == nil && now.Revision > before.Revision && now.Realized >= now.Revision
	})
}

func TestAGroupThatChangesTakesEffectOnALivePod(t *testing.T) {
	env := testutils.Kernel(t)
	far := lab.Host{Name: "far", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:ffff::7")}}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9), far}, Files: map[string]string{
		"pods.yaml":     box.PodYAML("x", "p1", "", ""),
		"policies.yaml": egressYAML("group", "toCIDRSet: [{cidrGroupRef: partners, except: [203.0.113.128/25]}]"),
	}})
	pod, hosts := addPod(b, "x", "p1", http80), hostEnds(b, http80)
	ext, out := hosts["ext"], hosts["far"]
	b.InForce(1)
	expect := func(when string, toExt, toFar bool) {
		t.Helper()
		var cells []cell
		for _, c := range []struct {
			to    lab.Source
			opens bool
		}{{ext, toExt}, {out, toFar}} {
			if c.opens {
				cells = append(cells, cell{from: pod, to: c.to, port: http80, want: ".", by: gen.RulePolicy})
			} else {
				cells = append(cells, cell{from: pod, to: c.to, port: http80, want: "E", by: gen.RuleDefaultDeny})
			}
		}
		verdicts(t, b, when, cells...)
	}
	expect("no group", false, false)
	revised(b, "a group", func() { b.Write("groups.yaml", groupYAML("partners", "203.0.113.0/24", "2001:db8::/64")) })
	expect("a group of the one host", true, false)
	revised(b, "another block", func() { b.Write("groups.yaml", groupYAML("partners", "198.51.100.7/32", "2001:db8:ffff::7/128")) })
	expect("a group of the other host", false, true)
	revised(b, "no group", func() { b.Remove("groups.yaml") })
	expect("the group gone", false, false)
	if err := errors.Join(b.StopAgent(), b.StartAgent(), box.WaitReady(b.Socket())); err != nil {
		t.Fatal(err)
	}
	b.InForce(1)
	revised(b, "a group again", func() { b.Write("groups.yaml", groupYAML("partners", "0.0.0.0/0", "::/0")) })
	expect("everything outside after a restart", true, true)
}

func TestServicesAndNodesAreReachedByName(t *testing.T) {
	env := testutils.Kernel(t)
	far := outHost("far", 77)
	labelled := func(name, zone string, addrs ...netip.Addr) string {
		return strings.Replace(nodeYAML(lab.Host{Name: name, Addresses: addrs}), "}\nstatus", ", labels: {zone: "+zone+"}}\nstatus", 1)
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9), far}, Files: map[string]string{
		"pods.yaml":  box.PodYAML("x", "p1", "", "") + box.PodYAML("y", "p2", "", "") + box.PodYAML("y", "p3", "", ""),
		"nodes.yaml": labelled("far", "b", far.Addresses...) + labelled("box", "a"),
		"services.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: back, namespace: y}\nspec: {selector: {pod: p2}, ports: [{port: 8080, targetPort: 80}]}\n" +
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: pay, namespace: y}\nspec: {ports: [{port: 80}]}\n" +
			"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: pay-1, namespace: y, labels: {kubernetes.io/service-name: pay}}\n" +
			"addressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [203.0.113.9]}]\n",
	}})
	p1, p2, p3, hosts := addPod(b, "x", "p1", http80), addPod(b, "y", "p2", http80), addPod(b, "y", "p3", http80), hostEnds(b, http80)
	node := nodeEnd(b)
	b.Serve(node.Netns, http80)
	for _, c := range []struct {
		element string
		opens   []lab.Source
	}{
		{"toServices: [{k8sService: {serviceName: back, namespace: y}}]", []lab.Source{p2}},
		{"{toServices: [{k8sService: {serviceName: back, namespace: y}}], toPorts: [{ports: [{port: '80', protocol: TCP}]}]}", []lab.Source{p2}}, // the pod's port
		{"{toServices: [{k8sService: {serviceName: back, namespace: y}}], toPorts: [{ports: [{port: '8080', protocol: TCP}]}]}", nil},            // the service's
		{"toServices: [{k8sService: {serviceName: pay, namespace: y}}]", []lab.Source{only4(hosts["ext"])}},
		{"toNodes: [{matchLabels: {zone: b}}]", []lab.Source{hosts["far"]}},
		{"toNodes: [{matchLabels: {zone: a}}]", []lab.Source{node}},
		{"toNodes: [{}]", []lab.Source{hosts["far"], node}},
	} {
		apply(b, egressYAML("named", c.element))
		var cells []cell
		for _, to := range []lab.Source{p2, p3, only4(hosts["ext"]), only6(hosts["ext"]), hosts["far"], node} {
			opens := slices.ContainsFunc(c.opens, func(o lab.Source) bool { return o.Name == to.Name && slices.Equal(o.Addrs, to.Addrs) })
			if opens {
				cells = append(cells, cell{from: p1, to: to, port: http80, want: ".", by: gen.RulePolicy})
			} else {
				cells = append(cells, cell{from: p1, to: to, port: http80, want: "E", by: gen.RuleDefaultDeny})
			}
		}
		verdicts(t, b, c.element, cells...)
	}
	apply(b, egressYAML("named", "toServices: [{k8sService: {serviceName: pay, namespace: y}}]"))
	revised(b, "a service with a selector", func() {
		b.Write("services.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: pay, namespace: y}\nspec: {selector: {pod: p3}, ports: [{port: 80}]}\n")
	})
	verdicts(t, b, "the service selects pods now", cell{from: p1, to: p3, port: http80, want: ".", by: gen.RulePolicy},
		cell{from: p1, to: only4(hosts["ext"]), port: http80, want: "E", by: gen.RuleDefaultDeny})
}

func TestICMPTypesAreOpenedByName(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9)}, Files: map[string]string{"pods.yaml": box.PodYAML("x", "p1", "", "")}})
	p1, ext := addPod(b, "x", "p1"), hostEnds(b, http80)["ext"]
	ends := map[string][2]*icmpEnd{}
	for i, name := range []string{"IPv4", "IPv6"} {
		ends[name] = [2]*icmpEnd{newICMPEnd(t, p1.Netns, p1.Addrs[i]), newICMPEnd(t, ext.Netns, ext.Addrs[i])}
	}
	seq := uint16(0)
	for _, c := range []struct {
		fields   string
		requests []string // families whose echo requests may leave the pod
		replies  []string // families whose echo replies may, unasked
	}{
		{"{type: EchoRequest}, {family: IPv6, type: EchoRequest}", []string{"IPv4", "IPv6"}, nil},
		{"{type: 8}", []string{"IPv4"}, nil},
		{"{family: IPv6, type: '128'}", []string{"IPv6"}, nil},
		{"{type: EchoReply}", nil, []string{"IPv4"}}, // type 0, not every type
		{"{type: 128}, {family: IPv6, type: EchoReply}", nil, []string{"IPv6"}},
	} {
		apply(b, egressYAML("icmp", "icmps: [{fields: ["+c.fields+"]}]"))
		for name, e := range ends {
			seq++
			pod, host := e[0], e[1]
			ask, reply := echo{id: 900 + seq, seq: seq}, echo{reply: true, id: 2900 + seq, seq: seq}
			when := c.fields + ", " + name
			for _, m := range []echo{ask, reply} {
				may := slices.Contains(c.requests, name) && !m.reply || slices.Contains(c.replies, name) && m.reply
				sends(t, b, fmt.Sprintf("%s, %+v", when, m), pod, host, m, may)
			}
			if slices.Contains(c.requests, name) {
				b.Eventually(when+": the answer comes back", func() bool { return pod.times(echo{reply: true, id: ask.id, seq: ask.seq}) > 0 })
			}
		}
		verdicts(t, b, c.fields+", TCP", cell{from: p1, to: ext, port: http80, want: "E", by: gen.RuleDefaultDeny})
	}
}

// sends sends an ICMP message and waits for the event of its verdict, which must
// be the one wanted and show the policy's log value where a rule allows.
func sends(t *testing.T, b *box.Box, when string, from, to *icmpEnd, m echo, may bool) {
	t.Helper()
	rec, err := probe.Follow(t.Context(), b.Agent)
	if err != nil {
		t.Fatal(err)
	}
	denied := rec.Denied(lab.Flow{Proto: from.proto, Src: netip.AddrPortFrom(from.addr, m.id), Dst: netip.AddrPortFrom(to.addr, 0)})
	from.send(t, to, m)
	patience, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if may {
		b.Eventually(when+": arrives", func() bool { return to.times(m) > 0 })
	} else {
		select {
		case <-denied:
		case <-patience.Done():
			t.Errorf("%s: no event says that it was denied", when)
		}
	}
	_, events, err := rec.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := to.times(m); n > 0 != may {
		t.Errorf("%s: arrived %d times", when, n)
	}
	log := ""
	if may {
		log = "of icmp"
	}
	if !slices.ContainsFunc(events, func(e gen.Event) bool {
		return e.IcmpType == from.kind(m.reply) && e.Source.IP == from.addr.String() && (e.Verdict == gen.VerdictAllow) == may && e.Rule.Log == log
	}) {
		t.Errorf("%s: no event of it has the log value %q: %+v", when, log, events)
	}
}
