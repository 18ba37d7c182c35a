package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// trieSize is how much a node knows: prefixes in its ipcache, of which the policy
// of the client allows some.
type trieSize struct {
	name             string
	prefixes, allows int
}

// sameIdentity is how many endpoints measureSharing compares with one.
const sameIdentity = 100

// outside is a host that no pod and no node has the address of: the programs find
// it in the trie of the ipcache alone.
var outside = netip.MustParseAddr("192.0.2.9")

// prefix is the n-th of many of one address each.
func prefix(n int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(n >> 16), byte(n >> 8), byte(n)}), 32)
}

// trieFiles is what the node is told: pods of one identity, what the client may
// reach, and prefixes that concern nobody here. An object has 10,000 at most.
func trieFiles(s trieSize) map[string]string {
	var pods strings.Builder
	for i := range sameIdentity {
		fmt.Fprintf(&pods, "---\n{apiVersion: v1, kind: Pod, metadata: {namespace: bench, name: client%d, labels: {app: client}}, spec: {containers: []}}\n", i)
	}
	files := map[string]string{"pods.yaml": pods.String(), "client.yaml": reach("client", append([]netip.Prefix{netip.PrefixFrom(outside, 32)}, prefixes(1, s.allows)...))}
	for from := s.allows; from < s.prefixes; from += 10_000 {
		name := fmt.Sprintf("nobody%d", from)
		files[name+".yaml"] = reach(name, prefixes(from, min(from+10_000, s.prefixes)))
	}
	return files
}

func prefixes(from, to int) (out []netip.Prefix) {
	for n := from; n < to; n++ {
		out = append(out, prefix(n))
	}
	return out
}

// reach is a policy that lets the pods of an app reach prefixes, and nobody else.
func reach(app string, to []netip.Prefix) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: cilium.io/v2alpha1\nkind: CiliumCIDRGroup\nmetadata: {name: %s}\nspec:\n  externalCIDRs:\n", app)
	for _, p := range to {
		fmt.Fprintf(&b, "  - %s\n", p)
	}
	fmt.Fprintf(&b, "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {namespace: bench, name: %s}\n"+
		"spec:\n  endpointSelector: {matchLabels: {app: %[1]s}}\n  egress: [{toCIDRSet: [{cidrGroupRef: %[1]s}]}]\n", app)
	return b.String()
}

// trieNode is a node with a client and a server outside.
type trieNode struct {
	*node
	bed  bed
	note string // what it holds
}

func newTrieNode(ctx context.Context, o options, s trieSize) (t *trieNode, end teardown, err error) {
	n, err := startNode(ctx, o, s.name, trieFiles(s), []lab.Host{{Name: "server", Addresses: []netip.Addr{outside}}}, "--ipv4-pool=10.99.0.0/16")
	if err != nil {
		return nil, nil, err
	}
	end = append(end, n.close)
	pod, err := n.AddPod(ctx, lab.Pod{Namespace: "bench", Name: "client0"})
	if err != nil {
		return nil, end, err
	}
	t = &trieNode{node: n, bed: bed{s.name, pod.Netns, outside}}
	stop, err := serve(o, n.Record.Hosts[0].Netns)
	if err != nil {
		return nil, end, err
	}
	end = append(end, stop)
	return t, end, t.settle(ctx, s)
}

// settle waits until the kernel holds everything, and counts it.
func (t *trieNode) settle(ctx context.Context, s trieSize) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		known, lines, err := t.count(ctx)
		if err != nil {
			return err
		}
		if known >= s.prefixes && lines >= s.allows {
			t.note = fmt.Sprintf("%d prefixes and %d lines", known, lines)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s holds %d prefixes and %d lines, want %d and %d: %w", s.name, known, lines, s.prefixes, s.allows, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// count is what the kernel holds: prefixes of the ipcache and lines of the
// client's policy.
func (t *trieNode) count(ctx context.Context) (known, lines int, err error) {
	m, err := ipcachemap.Open(bpf.Root{Path: t.Record.BPFRoot})
	if err != nil {
		return 0, 0, err
	}
	all, err := m.Dump()
	if err := errors.Join(err, m.Close()); err != nil {
		return 0, 0, err
	}
	endpoints, err := t.agent.Endpoints(ctx, nil, []gen.EndpointState{gen.EndpointReady})
	if err != nil || len(endpoints) == 0 {
		return len(all), 0, err
	}
	return len(all), endpoints[0].Policy.Entries, nil
}

// measureTrie reports new connections to a peer that only the trie knows, from a
// node that knows much and from one that knows little, in turn; then the memory
// of many endpoints of one identity on the first.
func measureTrie(ctx context.Context, o options, r *report) (err error) {
	var end teardown
	defer func() { err = errors.Join(err, end.run()) }()
	var nodes []*trieNode
	for _, s := range []trieSize{{"little", 10, 10}, {"much", 100_000, 10_000}} {
		n, undo, err := newTrieNode(ctx, o, s)
		end = append(end, undo...)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	time.Sleep(300 * time.Millisecond) // until the servers listen
	crr := bursts()[1]
	samples := map[string][]float64{}
	turn := slices.Clone(nodes)
	for round := range o.rounds {
		for _, n := range turn {
			v, err := o.burst(ctx, crr, n.bed)
			if err != nil {
				return fmt.Errorf("node %s, round %d: %w", n.bed.name, round, err)
			}
			samples[n.bed.name] = append(samples[n.bed.name], v)
		}
		slices.Reverse(turn)
	}
	reportTrie(samples["little"], samples["much"], nodes[0].note, nodes[1].note, r)
	return nodes[1].measureSharing(ctx, r)
}

func reportTrie(little, much []float64, littleNote, muchNote string, r *report) {
	ratio := ratios(much, little)
	r.add(line{What: "CRR p50 to an outside host", Value: quantile(little, 0.5), Unit: "us", Note: littleNote + "; " + spread(little)})
	r.add(line{What: "CRR p50 where much is known", Value: quantile(ratio, 0.5), Unit: "x", Baseline: "little", Aim: 1.05, Note: muchNote + "; " + spread(ratio)})
}

// measureSharing reports the memory of policies when many endpoints have one
// identity, to that of one endpoint.
func (n *node) measureSharing(ctx context.Context, r *report) error {
	before, err := n.policyMemory(ctx)
	if err != nil {
		return err
	}
	for i := 1; i < sameIdentity; i++ {
		if _, err := n.AddPod(ctx, lab.Pod{Namespace: "bench", Name: fmt.Sprintf("client%d", i)}); err != nil {
			return err
		}
	}
	endpoints, err := n.agent.Endpoints(ctx, nil, []gen.EndpointState{gen.EndpointReady})
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		if len(endpoints) != sameIdentity || e.Identity.ID != endpoints[0].Identity.ID || e.Policy.Entries != endpoints[0].Policy.Entries {
			return fmt.Errorf("of %d endpoints one has identity %d and %d lines, another %d and %d; want %d that are alike", len(endpoints),
				endpoints[0].Identity.ID, endpoints[0].Policy.Entries, e.Identity.ID, e.Policy.Entries, sameIdentity)
		}
	}
	after, err := n.policyMemory(ctx)
	if err != nil {
		return err
	}
	reportSharing(before, after, r)
	return nil
}

func reportSharing(before, after memory, r *report) {
	what := fmt.Sprintf("policy memory, %d of one identity", sameIdentity)
	r.add(line{What: what, Value: after.told / before.told, Unit: "x", Baseline: "one endpoint", Aim: 2, Note: fmt.Sprintf("as the agent tells it, %.0f KiB", after.told/1024)})
	r.add(line{What: what, Value: after.charged / before.charged, Unit: "x", Baseline: "one endpoint", Aim: 2, Note: fmt.Sprintf("as the kernel counts it, %.0f KiB", after.charged/1024)})
}

// memory of the policy maps in bytes, as the agent tells it and as the kernel counts it.
type memory struct{ told, charged float64 }

func (n *node) policyMemory(ctx context.Context) (m memory, err error) {
	list, err := n.agent.Maps(ctx)
	if err != nil {
		return m, err
	}
	for _, info := range list.Maps {
		if info.Name == policymap.Name {
			m.told = float64(info.Bytes)
		}
	}
	m.charged, err = chargedBytes(bpf.Root{Path: n.Record.BPFRoot}.Map(policymap.Name))
	if err == nil && (m.told == 0 || m.charged == 0) {
		err = errors.New("nobody tells the memory of the policy maps; the kernel does from Linux 5.8 on")
	}
	return m, err
}

// chargedBytes is what the kernel counts for an array of maps and the maps in it.
func chargedBytes(pin string) (sum float64, err error) {
	outer, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return 0, err
	}
	defer outer.Close()
	if sum, err = memlock(outer); err != nil {
		return 0, err
	}
	seen := map[ebpf.MapID]bool{}
	for slot := range outer.MaxEntries() {
		var id ebpf.MapID
		if err := outer.Lookup(slot, &id); errors.Is(err, ebpf.ErrKeyNotExist) || seen[id] {
			continue
		} else if err != nil {
			return 0, err
		}
		seen[id] = true
		inner, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was replaced meanwhile
		}
		if err != nil {
			return 0, err
		}
		bytes, err := memlock(inner)
		if err := errors.Join(err, inner.Close()); err != nil {
			return 0, err
		}
		sum += bytes
	}
	return sum, nil
}

func memlock(m *ebpf.Map) (float64, error) {
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	bytes, _ := info.Memlock()
	return float64(bytes), nil
}
