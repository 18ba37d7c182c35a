package filter

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
)

// sh runs a command in the test's namespace.
func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}

func look(t *testing.T) State {
	t.Helper()
	s, err := Look(t.Context(), pools, "lxc")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestN63EveryWayToDropForwardedPacketsIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		setUp, accept string // accept: how a person lets pods through
		missing       int
	}{
		"nothing":                      {"true", "true", 0},
		"iptables":                     {"iptables-nft -P FORWARD DROP", "", 2},
		"ip6tables":                    {"ip6tables-nft -P FORWARD DROP", "", 2},
		"iptables-legacy":              {"iptables-legacy -P FORWARD DROP && ip6tables-legacy -P FORWARD DROP", "", 4},
		"legacy beside nft":            {"iptables-legacy -P FORWARD DROP && iptables-nft -P FORWARD DROP", "", 4},
		"a table for both families":    {"nft 'table inet fw { chain passing { type filter hook forward priority 0; policy drop; }; }'", "", 4},
		"the last rule, as firewalld":  {"nft 'table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct state established,related accept; jump zones; reject with icmpx admin-prohibited; }; chain zones { }; }'", "", 4},
		"the last rule, by iptables":   {"iptables-nft -A FORWARD -j REJECT", "", 2},
		"a person accepts by address":  {"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -s 10.244.0.0/16 -j ACCEPT; iptables-nft -A FORWARD -d 10.244.0.0/16 -j ACCEPT", 2},
		"a person accepts by the link": {"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -i lxc+ -j ACCEPT; iptables-nft -A FORWARD -o lxc+ -j ACCEPT", 2},
		"only input drops":             {"iptables-nft -P INPUT DROP", "true", 0},
	} {
		t.Run(name, func(t *testing.T) {
			testutils.Kernel(t, testutils.Tool("nft"), testutils.Tool("iptables-legacy"))
			sh(t, c.setUp)
			s := look(t)
			if len(s.Missing) != c.missing || len(s.Ours) != 0 || s.Unseen != "" {
				t.Fatalf("%+v; want %d missing", s, c.missing)
			}
			if c.accept == "" { // the commands that people are told
				for _, r := range s.Missing {
					sh(t, strings.ReplaceAll(r.Command(), `"`, `\"`))
				}
			} else {
				sh(t, c.accept)
			}
			if s = look(t); len(s.Missing) != 0 || len(s.Ours) != 0 {
				t.Errorf("after the commands: %+v\n%s", s, sh(t, "nft list ruleset; iptables-legacy -S"))
			}
		})
	}
}

func TestN63OurRulesAreMadeMovedAndWithdrawn(t *testing.T) {
	for name, c := range map[string]struct{ setUp, flush, open string }{
		"nft":    {"iptables-nft -P FORWARD DROP && ip6tables-nft -P FORWARD DROP", "iptables-nft -F FORWARD", "iptables-nft -P FORWARD ACCEPT && ip6tables-nft -P FORWARD ACCEPT"},
		"legacy": {"iptables-legacy -P FORWARD DROP && ip6tables-legacy -P FORWARD DROP", "iptables-legacy -F FORWARD", "iptables-legacy -P FORWARD ACCEPT && ip6tables-legacy -P FORWARD ACCEPT"},
	} {
		t.Run(name, func(t *testing.T) {
			testutils.Kernel(t, testutils.Tool("nft"), testutils.Tool("iptables-legacy"))
			sh(t, c.setUp)
			keep := func(when string, made, have int) {
				t.Helper()
				rules, err := Keep(t.Context(), look(t))
				if err != nil || len(rules) != made {
					t.Errorf("%s: made %d rules, %v; want %d", when, len(rules), err, made)
				}
				if s := look(t); len(s.Ours) != have || len(s.Lacking()) != 0 {
					t.Errorf("%s: %+v; want %d of ours", when, s, have)
				}
			}
			keep("first", 4, 4)
			keep("again", 0, 4)
			sh(t, c.flush)
			keep("flushed", 2, 4)
			sh(t, c.open)
			keep("nothing drops any more", 0, 0)
			sh(t, c.setUp)
			keep("it drops again", 4, 4)
			if err := Withdraw(t.Context(), look(t)); err != nil {
				t.Error(err)
			}
			if s := look(t); len(s.Ours) != 0 || len(s.Missing) != 4 {
				t.Errorf("withdrawn: %+v", s)
			}
		})
	}
}
