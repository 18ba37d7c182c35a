package filter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// timeout bounds one look or change.
const timeout = 5 * time.Second

// comment marks our rules.
const comment = "weir:accept-forward"

// Chain is a chain that sees forwarded packets.
type Chain struct {
	Tool   string // that shows and changes it: nft, or an iptables
	Family string // ip, ip6 or inet
	Table  string // of nft
	Name   string
	// Drops says how it drops what no rule accepts: "policy" or "last rule".
	Drops string
}

func (c Chain) String() string {
	if c.nft() {
		return fmt.Sprintf("nft chain %s %s %s", c.Family, c.Table, c.Name)
	}
	return c.Tool + " chain " + c.Name
}

func (c Chain) nft() bool { return c.Table != "" }

// sees tells whether packets of the prefix's family go through the chain.
func (c Chain) sees(p netip.Prefix) bool {
	return c.Family == "inet" || c.Family == familyOf(p)
}

func familyOf(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ip6"
	}
	return "ip"
}

// Rule accepts what comes from, or goes to, a prefix.
type Rule struct {
	Chain  Chain
	Prefix netip.Prefix
	To     bool // to it, else from it

	handle int // of nft, of a rule that is there
}

// Command is the command that inserts the rule, for people.
func (r Rule) Command() string { return strings.Join(r.insert(""), " ") }

// insert is the command that puts the rule first in its chain.
func (r Rule) insert(comment string) []string {
	if !r.Chain.nft() {
		return append([]string{r.Chain.Tool, "-w", "2", "-I", r.Chain.Name}, r.match(comment)...)
	}
	field := "saddr"
	if r.To {
		field = "daddr"
	}
	out := []string{r.Chain.Tool, "insert", "rule", r.Chain.Family, r.Chain.Table, r.Chain.Name, familyOf(r.Prefix), field, r.Prefix.String(), "accept"}
	if comment != "" {
		out = append(out, "comment", `"`+comment+`"`)
	}
	return out
}

// remove is the command that takes a rule of ours away.
func (r Rule) remove() []string {
	if !r.Chain.nft() {
		return append([]string{r.Chain.Tool, "-w", "2", "-D", r.Chain.Name}, r.match(comment)...)
	}
	return []string{r.Chain.Tool, "delete", "rule", r.Chain.Family, r.Chain.Table, r.Chain.Name, "handle", fmt.Sprint(r.handle)}
}

// match is the rule in the words of iptables.
func (r Rule) match(comment string) []string {
	side := "-s"
	if r.To {
		side = "-d"
	}
	out := []string{side, r.Prefix.String()}
	if comment != "" {
		out = append(out, "-m", "comment", "--comment", comment)
	}
	return append(out, "-j", "ACCEPT")
}

// same tells whether two rules say the same in the same chain.
func (r Rule) same(o Rule) bool {
	return r.Prefix == o.Prefix && r.To == o.To && r.Chain.Tool == o.Chain.Tool && r.Chain.Family == o.Chain.Family && r.Chain.Table == o.Chain.Table && r.Chain.Name == o.Chain.Name
}

// State is what Look found.
type State struct {
	// Missing are the rules that chains which drop lack, so that packets from and
	// to the pools pass. Rules of ours count as missing there: see Ours.
	Missing []Rule
	Ours    []Rule // of us, in any chain that sees forwarded packets
	// Unseen says what could not be looked at, with what would help; empty: nothing.
	Unseen string
}

// Lacking are the missing rules that we have not made either.
func (s State) Lacking() []Rule { return without(s.Missing, s.Ours) }

func without(rules, others []Rule) []Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return slices.ContainsFunc(others, r.same) })
}

// Look reads the node's packet filter. podLinks is how the names of the pods'
// links begin.
func Look(ctx context.Context, pools []netip.Prefix, podLinks string) (State, error) {
	return systemTools().look(ctx, pools, podLinks)
}

// Keep inserts the missing rules and takes away those of ours that are not
// needed; it returns the rules that it inserted.
func Keep(ctx context.Context, s State) ([]Rule, error) {
	var errs []error
	for _, r := range without(s.Ours, s.Missing) {
		errs = append(errs, run(ctx, r.remove()))
	}
	lacking := s.Lacking()
	for _, r := range lacking {
		errs = append(errs, run(ctx, r.insert(comment)))
	}
	return lacking, errors.Join(errs...)
}

// Withdraw takes all rules of ours away.
func Withdraw(ctx context.Context, s State) error {
	var errs []error
	for _, r := range s.Ours {
		errs = append(errs, run(ctx, r.remove()))
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, command []string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := exec.CommandContext(ctx, command[0], command[1:]...).Output(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), explain(err))
	}
	return nil
}

// explain adds the first line that the tool wrote to standard error.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if line, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n"); line != "" {
			return fmt.Errorf("%w: %s", err, line)
		}
	}
	return err
}
