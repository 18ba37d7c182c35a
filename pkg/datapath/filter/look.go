package filter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// tools are the commands that are asked; tests put others in their place.
type tools struct {
	nft      string
	iptables map[string][2]string // per family: where legacy tables are, and where there is no nft
	proc     string               // with the lists of legacy tables
	modules  string               // of the kernel, by name
}

func systemTools() tools {
	return tools{
		nft:      "nft",
		iptables: map[string][2]string{"ip": {"iptables-legacy", "iptables"}, "ip6": {"ip6tables-legacy", "ip6tables"}},
		proc:     "/proc/thread-self/net/", modules: "/sys/module/",
	}
}

// accepts is what a chain lets pass without further conditions.
type accepts struct {
	from, to   []netip.Prefix
	fromPods   bool // by their links
	toPods     bool
	everything bool
}

func (a *accepts) add(b accepts) {
	a.from, a.to = append(a.from, b.from...), append(a.to, b.to...)
	a.fromPods, a.toPods, a.everything = a.fromPods || b.fromPods, a.toPods || b.toPods, a.everything || b.everything
}

func (a accepts) holds(pool netip.Prefix, to bool) bool {
	prefixes, links := a.from, a.fromPods
	if to {
		prefixes, links = a.to, a.toPods
	}
	for _, p := range prefixes {
		if p.Bits() <= pool.Bits() && p.Contains(pool.Addr()) {
			return true
		}
	}
	return links || a.everything
}

// seen is a chain as it was read.
type seen struct {
	chain   Chain
	accepts accepts // not by rules of ours
	ours    []Rule
}

func (t tools) look(ctx context.Context, pools []netip.Prefix, podLinks string) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	chains, err := t.nftChains(ctx, podLinks)
	noNft := errors.Is(err, exec.ErrNotFound)
	if err != nil && !noNft {
		return State{}, err
	}
	var s State
	for _, family := range []string{"ip", "ip6"} {
		legacy := t.legacy(family)
		if !legacy && !noNft {
			continue
		}
		c, err := t.iptablesChain(ctx, family, legacy, podLinks)
		switch {
		case err == nil:
			chains = append(chains, c)
		case !errors.Is(err, exec.ErrNotFound):
			return State{}, err
		case legacy:
			s.Unseen = fmt.Sprintf("the kernel has tables of %s, which is not installed", t.iptables[family][0])
		case t.nftLoaded():
			s.Unseen = "the kernel has nftables, and nft is not installed"
		}
	}
	for _, c := range chains {
		s.Ours = append(s.Ours, c.ours...)
		if c.chain.Drops == "" {
			continue
		}
		for _, p := range pools {
			for _, to := range []bool{false, true} {
				if c.chain.sees(p) && !c.accepts.holds(p, to) {
					s.Missing = append(s.Missing, Rule{Chain: c.chain, Prefix: p, To: to})
				}
			}
		}
	}
	return s, nil
}

// legacy tells whether the kernel has a filter table of iptables-legacy.
func (t tools) legacy(family string) bool {
	names, err := os.ReadFile(t.proc + family + "_tables_names")
	return err == nil && strings.Contains("\n"+string(names), "\nfilter\n")
}

func (t tools) nftLoaded() bool {
	_, err := os.Stat(t.modules + "nf_tables")
	return err == nil
}

// iptablesChain reads the chain FORWARD with the first tool that is installed.
func (t tools) iptablesChain(ctx context.Context, family string, legacy bool, podLinks string) (seen, error) {
	names := t.iptables[family]
	tool := names[1]
	if _, err := exec.LookPath(names[0]); legacy && err == nil {
		tool = names[0]
	}
	out, err := exec.CommandContext(ctx, tool, "-w", "2", "-S").Output()
	if err != nil {
		return seen{}, fmt.Errorf("ask %s for the packet filter: %w", tool, explain(err))
	}
	return readIPTables(string(out), Chain{Tool: tool, Family: family, Name: "FORWARD"}, podLinks), nil
}

// readIPTables reads the form of iptables -S.
func readIPTables(text string, chain Chain, podLinks string) seen {
	s := seen{chain: chain}
	rules := map[string][][]string{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "-P" && words[1] == chain.Name && words[2] == "DROP":
			s.chain.Drops = "policy"
		case len(words) > 2 && words[0] == "-A":
			rules[words[1]] = append(rules[words[1]], words[2:])
		}
	}
	var walk func(name string, depth int)
	walk = func(name string, depth int) {
		for _, words := range rules[name] {
			a, target, ours, ok := readIPTablesRule(words, podLinks)
			switch {
			case !ok:
			case target == "ACCEPT" && ours != nil && depth == 0:
				s.ours = append(s.ours, *ours)
			case target == "ACCEPT":
				s.accepts.add(a)
			case a.everything && depth < 8 && rules[target] != nil:
				walk(target, depth+1)
			case a.everything && depth == 0 && (target == "DROP" || target == "REJECT"):
				s.chain.Drops = cmp.Or(s.chain.Drops, "last rule")
				return
			}
		}
	}
	walk(chain.Name, 0)
	for i := range s.ours {
		s.ours[i].Chain = s.chain
	}
	return s
}

// readIPTablesRule reads one rule; not ok if it has conditions beside those that
// accepts knows.
func readIPTablesRule(words []string, podLinks string) (a accepts, target string, ours *Rule, ok bool) {
	conditions := 0
	var r Rule
	mine := false
	for i := 0; i+1 < len(words); i += 2 {
		value := words[i+1]
		switch words[i] {
		case "-s", "-d":
			p, err := netip.ParsePrefix(value)
			if err != nil {
				return a, "", nil, false
			}
			conditions++
			if r.Prefix, r.To = p, words[i] == "-d"; r.To {
				a.to = append(a.to, p)
			} else {
				a.from = append(a.from, p)
			}
		case "-i", "-o":
			if value != podLinks+"+" {
				return a, "", nil, false
			}
			conditions++
			a.fromPods, a.toPods = a.fromPods || words[i] == "-i", a.toPods || words[i] == "-o"
		case "-m":
			if value != "comment" {
				return a, "", nil, false
			}
		case "--comment":
			mine = value == comment || value == `"`+comment+`"`
			if strings.HasPrefix(value, `"`) && !strings.HasSuffix(value, `"`) { // of several words
				for i+1 < len(words) && !strings.HasSuffix(words[i+1], `"`) {
					i++
				}
			}
		case "--reject-with":
		case "-j":
			target = value
		default:
			return a, "", nil, false
		}
	}
	if conditions > 1 {
		return a, "", nil, false
	}
	a.everything = conditions == 0
	if mine {
		ours = &r
	}
	return a, target, ours, true
}
