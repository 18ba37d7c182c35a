package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/policy/k8s"
)

func TestPolicyFiguresAreRatiosOfTheSameRoundWithTheirAims(t *testing.T) {
	r := &report{}
	slow, base := []float64{3, 30, 3}, []float64{2, 20, 2}
	reportGrowth(base, slow, r)
	reportDelta(slow, base, 2, r)
	reportTrie(base, slow, "little here", "much here", r)
	reportSharing(memory{told: 1024, charged: 512}, memory{told: 2048, charged: 2048}, r)
	var got []line
	for _, l := range r.Lines {
		if l.Unit == "x" {
			got = append(got, l)
		}
	}
	want := []struct {
		value, aim float64
		note       string
		met        bool
	}{
		{1.5, 1.5, "half of 3", true},
		{1.5, 3, "2 of 6 changes took another slot", true},
		{1.5, 1.05, "much here; half of 3", false},
		{2, 2, "as the agent tells it, 2 KiB", true},
		{4, 2, "as the kernel counts it, 2 KiB", false},
	}
	if len(got) != len(want) {
		t.Fatalf("%d ratios, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		if l := got[i]; l.Value != w.value || l.Aim != w.aim || l.met() != w.met || !strings.Contains(l.Note, w.note) || l.Baseline == "" {
			t.Errorf("ratio %d is %+v, want %+v", i, l, w)
		}
	}
}

func TestOneIdentityConcernsOneEndpoint(t *testing.T) {
	c, err := newCluster(20, 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.grow(t.Context(), 200); err != nil {
		t.Fatal(err)
	}
	if c.builds != 10 || c.lines < 20 {
		t.Errorf("%d endpoints computed, the last %d lines; want 10 and the peers of two policies", c.builds, c.lines)
	}
	if ms, err := c.addOne(t.Context()); err != nil || ms <= 0 {
		t.Errorf("%v ms, %v", ms, err)
	}
	alone, err := newCluster(5, 5) // no policy lets the peer in
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone.addOne(t.Context()); err == nil {
		t.Error("an identity that concerns nobody was measured")
	}
}

// What a node is told names all prefixes once, and the host is among what the
// client may reach.
func TestFilesOfATrieAreValidAndComplete(t *testing.T) {
	size := trieSize{"some", 25_000, 1_000}
	named := map[netip.Prefix]string{}
	for file, text := range trieFiles(size) {
		docs, err := k8s.Split([]byte(text), file)
		if err != nil {
			t.Fatal(err)
		}
		if file == "pods.yaml" {
			if len(docs) != sameIdentity {
				t.Errorf("%d pods", len(docs))
			}
			continue
		}
		group, err := docs[0].CIDRGroup()
		if err != nil {
			t.Fatal(err)
		}
		objects, err := k8s.Decode([]byte(text[strings.Index(text, "---"):]), file)
		if err != nil {
			t.Fatal(err)
		}
		app := strings.TrimSuffix(file, ".yaml")
		ps, err := k8s.Translate(objects[0], k8s.Options{ClusterName: "default", References: &k8s.References{Groups: map[string]*k8s.CIDRGroup{app: group}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			for _, rule := range p.Rules {
				for _, peer := range rule.Peers {
					if other, known := named[peer.CIDR.Prefix]; known {
						t.Fatalf("%s names %s, as %s does", file, peer.CIDR.Prefix, other)
					}
					named[peer.CIDR.Prefix] = file
				}
			}
		}
	}
	if len(named) != size.prefixes || named[netip.PrefixFrom(outside, 32)] != "client.yaml" {
		t.Errorf("%d prefixes, the host's is in %q", len(named), named[netip.PrefixFrom(outside, 32)])
	}
}

// The raw lines are one for each line of the policy, in the order of identities.
func TestRawLinesAreAsManyAsThoseOfThePolicy(t *testing.T) {
	keys, values := rawKeys(1000, 300)
	slices.SortFunc(keys, func(a, b [12]byte) int { return slices.Compare(a[:], b[:]) })
	if n := len(slices.Compact(keys)); n != 300 || len(values) != 300 || len(policyLines(1000, 300)) != 300 {
		t.Errorf("%d keys, %d values", n, len(values))
	}
}
