package filter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
)

// The form of libnftables-json(5), as far as it is read.
type (
	nftChain struct {
		Family, Table, Name, Type, Hook, Policy string
	}
	nftRule struct {
		Family, Table, Chain, Comment string
		Handle                        int
		Expr                          []map[string]json.RawMessage
	}
	nftItem struct {
		Chain *nftChain
		Rule  *nftRule
	}
	nftMatch struct {
		Op   string
		Left struct {
			Payload *struct{ Protocol, Field string }
			Meta    *struct{ Key string }
		}
		Right json.RawMessage
	}
)

func (t tools) nftList(ctx context.Context, what ...string) ([]nftItem, error) {
	// -t leaves the elements of sets out, of which there may be many.
	out, err := exec.CommandContext(ctx, t.nft, append([]string{"-j", "-t", "-a", "list"}, what...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("ask nft for the packet filter: %w", explain(err))
	}
	var ruleset struct{ Nftables []nftItem }
	if err := json.Unmarshal(out, &ruleset); err != nil {
		return nil, fmt.Errorf("read nft's list of rules: %w", err)
	}
	return ruleset.Nftables, nil
}

// nftChains reads the base chains that see forwarded packets.
func (t tools) nftChains(ctx context.Context, podLinks string) ([]seen, error) {
	items, err := t.nftList(ctx, "chains")
	if err != nil {
		return nil, err
	}
	var out []seen
	tables := map[[2]string]map[string][]nftRule{} // rules by chain, of each table
	for _, i := range items {
		c := i.Chain
		ip := c != nil && (c.Family == "ip" || c.Family == "ip6" || c.Family == "inet")
		if !ip || c.Hook != "forward" || c.Type != "filter" {
			continue
		}
		table := [2]string{c.Family, c.Table}
		if tables[table] == nil {
			items, err := t.nftList(ctx, "table", c.Family, c.Table)
			if err != nil {
				return nil, err
			}
			tables[table] = map[string][]nftRule{}
			for _, i := range items {
				if i.Rule != nil {
					tables[table][i.Rule.Chain] = append(tables[table][i.Rule.Chain], *i.Rule)
				}
			}
		}
		chain := Chain{Tool: t.nft, Family: c.Family, Table: c.Table, Name: c.Name}
		if c.Policy == "drop" {
			chain.Drops = "policy"
		}
		out = append(out, readNft(chain, tables[table], podLinks))
	}
	return out, nil
}

// readNft reads a chain and those that all its packets jump to.
func readNft(chain Chain, rules map[string][]nftRule, podLinks string) seen {
	s := seen{chain: chain}
	var walk func(name string, depth int)
	walk = func(name string, depth int) {
		for _, rule := range rules[name] {
			a, verdict, target, ok := rule.read(podLinks)
			switch {
			case rule.Comment == comment && depth == 0:
				if r, ok := rule.ours(a); ok {
					s.ours = append(s.ours, r)
				}
			case !ok:
			case verdict == "accept":
				s.accepts.add(a)
			case a.everything && depth < 8 && (verdict == "jump" || verdict == "goto"):
				walk(target, depth+1)
			case a.everything && depth == 0 && (verdict == "drop" || verdict == "reject"):
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

// ours is the rule that Rule.insert made.
func (rule nftRule) ours(a accepts) (Rule, bool) {
	r := Rule{handle: rule.Handle}
	switch {
	case len(a.from) == 1 && len(a.to) == 0:
		r.Prefix = a.from[0]
	case len(a.to) == 1 && len(a.from) == 0:
		r.Prefix, r.To = a.to[0], true
	default:
		return r, false
	}
	return r, true
}

// read tells what a rule does; not ok if it has conditions beside those that
// accepts knows.
func (rule nftRule) read(podLinks string) (a accepts, verdict, target string, ok bool) {
	conditions := 0
	for _, e := range rule.Expr {
		for name, value := range e {
			switch name {
			case "counter", "log":
			case "accept", "drop", "reject":
				verdict = name
			case "jump", "goto":
				var to struct{ Target string }
				if json.Unmarshal(value, &to) != nil {
					return a, "", "", false
				}
				verdict, target = name, to.Target
			case "xt": // of iptables-nft
				var x struct{ Type, Name string }
				if json.Unmarshal(value, &x) != nil || x.Name != "comment" && x.Name != "REJECT" {
					return a, "", "", false
				}
				if x.Name == "REJECT" {
					verdict = "reject"
				}
			case "match":
				conditions++
				if !a.match(value, podLinks) {
					return a, "", "", false
				}
			default:
				return a, "", "", false
			}
		}
	}
	a.everything = conditions == 0
	return a, verdict, target, conditions <= 1
}

// match adds a condition, or returns false if it is not one for pods.
func (a *accepts) match(value json.RawMessage, podLinks string) bool {
	var m nftMatch
	if json.Unmarshal(value, &m) != nil || m.Op != "==" {
		return false
	}
	switch {
	case m.Left.Payload != nil && (m.Left.Payload.Protocol == "ip" || m.Left.Payload.Protocol == "ip6"):
		p, ok := nftPrefix(m.Right)
		switch m.Left.Payload.Field {
		case "saddr":
			a.from = append(a.from, p)
		case "daddr":
			a.to = append(a.to, p)
		default:
			return false
		}
		return ok
	case m.Left.Meta != nil:
		var name string
		if json.Unmarshal(m.Right, &name) != nil || name != podLinks+"*" {
			return false
		}
		a.fromPods, a.toPods = m.Left.Meta.Key == "iifname", m.Left.Meta.Key == "oifname"
		return a.fromPods || a.toPods
	}
	return false
}

// nftPrefix reads an address or a prefix.
func nftPrefix(value json.RawMessage) (netip.Prefix, bool) {
	var prefix struct {
		Prefix struct {
			Addr string
			Len  int
		}
	}
	if json.Unmarshal(value, &prefix) == nil {
		a, err := netip.ParseAddr(prefix.Prefix.Addr)
		return netip.PrefixFrom(a, prefix.Prefix.Len), err == nil
	}
	var addr netip.Addr
	if json.Unmarshal(value, &addr) != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr, addr.BitLen()), true
}
