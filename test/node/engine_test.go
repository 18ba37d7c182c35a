package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/test/box"
)

// soon waits as long as a change of labels or policies may take to be in force.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 5 seconds", what)
		}
	}
}

// passes reports whether a connection of each family is answered.
func passes(b *box.Box, from, to lab.Source, port lab.Port) bool {
	for i, src := range from.Addrs {
		if b.Try(from.Netns, src, to.Addrs[i], port) != nil {
			return false
		}
	}
	return true
}

// stops reports whether no connection of either family is answered.
func stops(b *box.Box, from, to lab.Source, port lab.Port) bool {
	for i, src := range from.Addrs {
		if b.Try(from.Netns, src, to.Addrs[i], port) == nil {
			return false
		}
	}
	return true
}

// ciliumYAML is a CiliumNetworkPolicy of namespace x for the pod of that name;
// the spec goes on behind the selector.
func ciliumYAML(name, pod, spec string) string {
	return fmt.Sprintf("---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: %s, namespace: x}\nspec: {endpointSelector: {matchLabels: {pod: %s}}, %s}\n", name, pod, spec)
}

// clusterwide makes the clusterwide kind of such a policy.
func clusterwide(policy string) string {
	return strings.Replace(strings.Replace(policy, ", namespace: x}", "}", 1), "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", 1)
}

// runningPod and endedPod give a Pod object of box.PodYAML its node, its addresses
// and that it runs or has run to its end.
func runningPod(text, node string, addrs []netip.Addr) string {
	return podInPhase(text, node, addrs, "Running")
}

func endedPod(text, node string, addrs []netip.Addr) string {
	return podInPhase(text, node, addrs, "Succeeded")
}

func podInPhase(text, node string, addrs []netip.Addr, phase string) string {
	var ips []string
	for _, a := range addrs {
		ips = append(ips, fmt.Sprintf("{ip: '%s'}", a))
	}
	return strings.Replace(strings.TrimSuffix(text, "---\n"), "spec:\n", "spec:\n  nodeName: "+node+"\n", 1) +
		fmt.Sprintf("status: {phase: %s, podIP: '%s', podIPs: [%s]}\n---\n", phase, addrs[0], strings.Join(ips, ", "))
}

// single lists the addresses as prefixes of one address, in the form of a YAML flow list.
func single(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, fmt.Sprintf("'%s/%d'", a, a.BitLen()))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// blocks are ipBlock peers, one for each address.
func blocks(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, fmt.Sprintf("{ipBlock: {cidr: '%s/%d'}}", a, a.BitLen()))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// realized are the lines of the policy map of a pod, with the labels of each
// peer in place of its number, so that two agents can be compared.
func realized(t *testing.T, b *box.Box, pod *lab.AttachedPod) []string {
	t.Helper()
	var out []string
	names := map[uint32]string{0: "anybody"}
	list, err := b.Agent.Identities(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range list {
		names[id.ID] = strings.Join(id.Labels, ",")
	}
	for k, e := range dumped(t, b, pod) {
		verdict := "allow"
		if e.Deny {
			verdict = "deny"
		}
		out = append(out, fmt.Sprintf("%d %s %d/%d/%d stage %d: %s %d", k.Direction, names[k.Identity], k.Protocol, k.Port, k.PortBits, k.Stage, verdict, e.Order>>32))
	}
	slices.Sort(out)
	return out
}

// dumped are the lines of the policy map of a pod.
func dumped(t *testing.T, b *box.Box, pod *lab.AttachedPod) map[policymap.Key]policymap.Entry {
	t.Helper()
	r, err := policymap.OpenReader(bpf.Root{Path: b.Record.BPFRoot})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lines, err := r.Dump(endpointOf(t, b, pod).Policy.Slot)
	if err != nil {
		t.Fatal(err)
	}
	for k, e := range lines {
		e.Judged = 0 // moves with every packet
		lines[k] = e
	}
	return lines
}

// identityOf is the number of a pod's identity.
func identityOf(t *testing.T, b *box.Box, pod string) (endpoint uint16, identity uint32) {
	t.Helper()
	e, err := b.Agent.Endpoint(t.Context(), "pod-name:"+pod)
	if err != nil {
		t.Fatal(err)
	}
	return e.ID, e.Identity.ID
}

// allowed and denied are cells whose rule is a policy's or the default's.
func allowed(from, to lab.Source, port lab.Port) cell {
	return cell{from: from, to: to, port: port, want: ".", by: gen.RulePolicy}
}

func denied(from, to lab.Source, port lab.Port, letter string) cell {
	return cell{from: from, to: to, port: port, want: letter, by: gen.RuleDefaultDeny}
}

// silent sends a word over a connection and says what is wrong if it is answered.
func silent(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("word")); err != nil {
		return nil
	}
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		return nil
	}
	return errors.New("the word came back")
}

// revisit waits until the agent has read its folder again, by a namespace that a
// last pod is in.
func revisit(t *testing.T, b *box.Box) {
	t.Helper()
	before, err := b.Agent.PolicyRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	marks := fmt.Sprintf("mark-%d", before.Revision)
	b.Write("mark.yaml", policyYAML("marks", marks, "none", "policyTypes: [Ingress]"))
	b.Eventually("the folder is read again", func() bool {
		_, err := b.Agent.Policy(t.Context(), "NetworkPolicy", "marks", marks)
		rev, err2 := b.Agent.PolicyRevision(t.Context())
		return err == nil && err2 == nil && rev.Realized >= rev.Revision
	})
}

// tamper opens the policy map of a pod behind the agent's back.
func tamper(t *testing.T, b *box.Box, pod *lab.AttachedPod, change func(m *ebpf.Map, keys [][]byte) error) {
	t.Helper()
	outer, err := ebpf.LoadPinnedMap(bpf.Root{Path: b.Record.BPFRoot}.Map(policymap.Name), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	var id ebpf.MapID
	if err := outer.Lookup(endpointOf(t, b, pod).Policy.Slot, &id); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var keys [][]byte
	var k, v []byte
	for all := m.Iterate(); all.Next(&k, &v); {
		keys = append(keys, slices.Clone(k))
	}
	if err := change(m, keys); err != nil {
		t.Fatal(err)
	}
}
