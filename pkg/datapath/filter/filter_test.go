package filter

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var (
	v4    = netip.MustParsePrefix("10.244.0.0/24")
	v6    = netip.MustParsePrefix("fd00:244::/64")
	pools = []netip.Prefix{v4, v6}
)

// script writes a fake tool.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// fake is a node without nft and without tables.
func fake(t *testing.T) tools {
	const missing = "no-such-tool-anywhere"
	none := [2]string{missing, missing}
	return tools{nft: missing, iptables: map[string][2]string{"ip": none, "ip6": none}, proc: t.TempDir() + "/", modules: t.TempDir() + "/"}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestN63WhatCannotBeSeenIsTold(t *testing.T) {
	s, err := fake(t).look(t.Context(), pools, "lxc")
	if err != nil || s.Unseen != "" {
		t.Errorf("a kernel without any packet filter: %+v, %v", s, err)
	}
	nft := fake(t)
	mkdir(t, nft.modules+"nf_tables")
	if s, err = nft.look(t.Context(), pools, "lxc"); err != nil || !strings.Contains(s.Unseen, "nft is not installed") {
		t.Errorf("nftables without nft: %+v, %v", s, err)
	}
	legacy := fake(t)
	if err := os.WriteFile(legacy.proc+"ip_tables_names", []byte("nat\nfilter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err = legacy.look(t.Context(), pools, "lxc"); err != nil || !strings.Contains(s.Unseen, "which is not installed") {
		t.Errorf("legacy tables without their tool: %+v, %v", s, err)
	}
	for _, says := range []string{"echo 'not allowed' >&2; exit 1", "echo hello"} {
		broken := fake(t)
		broken.nft = script(t, says)
		if _, err := broken.look(t.Context(), pools, "lxc"); err == nil {
			t.Errorf("nft that does %q: no error", says)
		}
	}
}

func TestIPTablesIsAskedWithoutNft(t *testing.T) {
	tool := fake(t)
	tool.iptables["ip"] = [2]string{"no-such-tool-anywhere", script(t, "echo '-P FORWARD DROP'")}
	s, err := tool.look(t.Context(), pools, "lxc")
	if err != nil || len(s.Missing) != 2 || s.Missing[0].Prefix != v4 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := s.Missing[1].Command(); !strings.HasSuffix(got, "-I FORWARD -d 10.244.0.0/24 -j ACCEPT") {
		t.Errorf("command %q", got)
	}
}

func TestRulesOfIPTablesAreReadAsFarAsTheyAreAboutPods(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		missing int // of the pool's two directions
	}{
		"nothing":                 {"-P FORWARD ACCEPT", 0},
		"the policy drops":        {"-P FORWARD DROP", 2},
		"both ways accepted":      {"-P FORWARD DROP\n-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n-A FORWARD -d 10.0.0.0/8 -j ACCEPT", 0},
		"one way accepted":        {"-P FORWARD DROP\n-A FORWARD -s 10.0.0.0/8 -j ACCEPT", 1},
		"a smaller prefix":        {"-P FORWARD DROP\n-A FORWARD -s 10.244.0.0/25 -j ACCEPT", 2},
		"with a port":             {"-P FORWARD DROP\n-A FORWARD -s 10.0.0.0/8 -p tcp -m tcp --dport 80 -j ACCEPT", 2},
		"not these":               {"-P FORWARD DROP\n-A FORWARD ! -s 10.0.0.0/8 -j ACCEPT", 2},
		"by the pods' links":      {"-P FORWARD DROP\n-A FORWARD -i lxc+ -j ACCEPT\n-A FORWARD -o lxc+ -j ACCEPT", 0},
		"by a bridge":             {"-P FORWARD DROP\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT", 2},
		"by a chain of the user":  {"-P FORWARD DROP\n-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -s 10.244.0.0/24 -m comment --comment \"our pods\" -j ACCEPT\n-A DOCKER-USER -j RETURN", 1},
		"chains that jump round":  {"-P FORWARD DROP\n-A FORWARD -j A\n-A A -j B\n-A B -j A", 2},
		"the last rule rejects":   {"-P FORWARD ACCEPT\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-port-unreachable", 2},
		"accepted after the last": {"-P FORWARD ACCEPT\n-A FORWARD -j DROP\n-A FORWARD -j ACCEPT", 2},
		"what is no rule":         {"-A FORWARD -s nonsense -j\n-P\n-A\n-P FORWARD DROP", 2},
	} {
		seen := readIPTables(c.text+"\n", Chain{Tool: "iptables", Family: "ip", Name: "FORWARD"}, "lxc")
		missing := 0
		for _, to := range []bool{false, true} {
			if seen.chain.Drops != "" && !seen.accepts.holds(v4, to) {
				missing++
			}
		}
		if missing != c.missing {
			t.Errorf("%s: %d missing, want %d: %+v", name, missing, c.missing, seen)
		}
	}
}
