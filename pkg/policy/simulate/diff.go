package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Difference is what two clusters judge differently.
type Difference struct {
	Pairs      []PairChange      // that have another verdict
	Isolations []IsolationChange // pods that policies isolate now, or no longer
	Gone, Came []string          // pods and hosts of only one of the two
	NotAsked   int               // connections that may differ and were too many to ask about
}

// Empty reports that there is no difference.
func (d Difference) Empty() bool {
	return len(d.Pairs)+len(d.Isolations)+len(d.Gone)+len(d.Came)+d.NotAsked == 0
}

// PairChange is a connection whose verdict differs, in one or both families.
type PairChange struct {
	From, To string
	Proto    wtypes.Proto
	Port     uint16
	Families []string // that change in the same way
	Old, New Outcome
}

// Outcome is a verdict and the ends that made it.
type Outcome struct {
	Verdict         types.Verdict
	Egress, Ingress Side
}

// Rules are those that decided: of a denial the denying ones.
func (o Outcome) Rules() []types.RuleRef {
	var out []types.RuleRef
	for _, s := range []Side{o.Egress, o.Ingress} {
		if s.Judged && s.Verdict == o.Verdict {
			out = append(out, s.Rule)
		}
	}
	return out
}

// String prints "deny by RULE and RULE".
func (o Outcome) String() string {
	s := o.Verdict.String()
	for i, r := range o.Rules() {
		word := " and "
		if i == 0 {
			word = " by "
		}
		s += word + r.String()
	}
	return s
}

// IsolationChange is a pod that policies isolate in a direction in only one of
// the two clusters.
type IsolationChange struct {
	Pod       string
	Direction types.Direction
	Isolated  bool             // now
	By        []types.Resource // the policies that do, or that did
}

// maxAsked is the most connections that Diff asks about.
const maxAsked = 20_000_000

// Diff compares what two clusters say of the ends that both have, on the ports
// that portsOf gives for a destination. only, if set, limits it to one end.
func Diff(old, now *Cluster, portsOf func(name string) []Port, only string) (Difference, error) {
	d, _, err := diff(old, now, portsOf, only, maxAsked)
	return d, err
}

// diff also tells how many connections it asked about.
func diff(old, now *Cluster, portsOf func(name string) []Port, only string, most int) (d Difference, asked int, err error) {
	var both []string
	for _, name := range old.Names() {
		if _, ok := now.Ends(name); ok {
			both = append(both, name)
		} else if only == "" || name == only {
			d.Gone = append(d.Gone, name)
		}
	}
	for _, name := range now.Names() {
		if _, ok := old.Ends(name); !ok && (only == "" || name == only) {
			d.Came = append(d.Came, name)
		}
	}
	for _, name := range both {
		if only == "" || name == only {
			d.isolation(old, now, name)
		}
	}
	pairs, asked := pairsOf(both, newChanges(old, now, both), portsOf, only)
	if asked > most {
		d.NotAsked = asked
		return d, 0, nil
	}
	for p := range pairs {
		for _, port := range p.ports {
			if err := d.pair(old, now, p.from, p.to, port, p.egress, p.ingress); err != nil {
				return d, asked, err
			}
		}
	}
	return d, asked, nil
}

// distinct leaves out the names of ports, and what is then there twice.
func distinct(ports []Port) []Port {
	var out []Port
	for _, p := range ports {
		if p.Name = ""; !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func (d *Difference) isolation(old, now *Cluster, name string) {
	a, b := old.byName[name], now.byName[name]
	if len(a) == 0 || len(b) == 0 || !a[0].Pod || !b[0].Pod {
		return
	}
	for _, dir := range []types.Direction{types.Ingress, types.Egress} {
		was, is := old.Policy(a[0]).Direction(dir).Isolating, now.Policy(b[0]).Direction(dir).Isolating
		switch {
		case len(was) == 0 && len(is) > 0:
			d.Isolations = append(d.Isolations, IsolationChange{name, dir, true, is})
		case len(was) > 0 && len(is) == 0:
			d.Isolations = append(d.Isolations, IsolationChange{name, dir, false, was})
		}
	}
}

// pair asks about a connection of which one direction or both may differ.
func (d *Difference) pair(old, now *Cluster, from, to string, p Port, egress, ingress bool) error {
	for _, is4 := range []bool{true, false} {
		if !egress || !ingress {
			same, err := sameSide(old, now, from, to, p, is4, egress)
			if err != nil {
				return err
			}
			if same {
				continue
			}
		}
		was, asked, err := old.outcome(from, to, p, is4)
		if err != nil {
			return fmt.Errorf("the old policies: %w", err)
		}
		is, askedNow, err := now.outcome(from, to, p, is4)
		if err != nil {
			return fmt.Errorf("the new policies: %w", err)
		}
		if !asked || !askedNow || was.Verdict == is.Verdict {
			continue
		}
		c := PairChange{From: from, To: to, Proto: p.Proto, Port: p.Port, Families: []string{"IPv6"}, Old: was, New: is}
		if is4 {
			c.Families[0] = "IPv4"
		}
		if n := len(d.Pairs); n > 0 && d.Pairs[n-1].same(c) {
			d.Pairs[n-1].Families = append(d.Pairs[n-1].Families, c.Families...)
			continue
		}
		d.Pairs = append(d.Pairs, c)
	}
	return nil
}

// same reports whether two changes differ in nothing but the family.
func (c PairChange) same(o PairChange) bool {
	return c.From == o.From && c.To == o.To && c.Proto == o.Proto && c.Port == o.Port && c.Old.String() == o.Old.String() && c.New.String() == o.New.String()
}

// sameSide reports whether both clusters say the same of one direction.
func sameSide(old, now *Cluster, from, to string, p Port, is4, egress bool) (bool, error) {
	var verdicts []types.Verdict
	for _, c := range []*Cluster{old, now} {
		a, okA := c.familyOf(from, is4)
		b, okB := c.familyOf(to, is4)
		if !okA || !okB || p.otherFamily(is4) {
			return true, nil
		}
		dir := types.Egress
		if !egress {
			a, b, dir = b, a, types.Ingress
		}
		side, err := c.side(a, b, dir, p.Proto, p.Port)
		if err != nil {
			return false, err
		}
		verdicts = append(verdicts, side.Verdict)
	}
	return verdicts[0] == verdicts[1], nil
}

func (c *Cluster) outcome(from, to string, p Port, is4 bool) (o Outcome, asked bool, err error) {
	a, okA := c.familyOf(from, is4)
	b, okB := c.familyOf(to, is4)
	if !okA || !okB || !a.Pod && !b.Pod || p.otherFamily(is4) {
		return o, false, nil
	}
	o.Egress, o.Ingress, err = c.Decide(a, b, p.Proto, p.Port)
	o.Verdict = types.Allow
	if o.Egress.Verdict == types.Deny || o.Ingress.Verdict == types.Deny {
		o.Verdict = types.Deny
	}
	return o, true, err
}

// NamedByRules lists a number of every part of the port space that the rules tell
// apart: the first of each port or range, what follows its last where another
// range goes on, and for each protocol with ports one that no rule names; and the
// types of ICMP. Two sets of policies that differ at all differ on one of these,
// or on a named port of the destination.
func NamedByRules(sets ...[]*types.Policy) []Port {
	distinct := map[types.Port]bool{}
	for _, ps := range sets {
		for _, p := range ps {
			for i := range p.Rules {
				for _, port := range p.Rules[i].Ports {
					if port.Name == "" && (port.ICMPType || port.Port != 0) {
						distinct[port] = true
					}
				}
			}
		}
	}
	named := slices.Collect(maps.Keys(distinct))
	covered := func(proto wtypes.Proto, n int) bool {
		return slices.ContainsFunc(named, func(p types.Port) bool {
			return p.Proto == proto && int(p.Port) <= n && n <= int(max(p.End, p.Port))
		})
	}
	seen := map[Port]bool{}
	for _, p := range named {
		seen[Port{Proto: p.Proto, Port: p.Port}] = true
		if after := int(max(p.End, p.Port)) + 1; !p.ICMPType && covered(p.Proto, after) {
			seen[Port{Proto: p.Proto, Port: uint16(after)}] = true
		}
	}
	for _, proto := range []wtypes.Proto{wtypes.ProtoTCP, wtypes.ProtoUDP, wtypes.ProtoSCTP} {
		n := 1
		for covered(proto, n) {
			n++
		}
		if n <= 65535 {
			seen[Port{Proto: proto, Port: uint16(n)}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
}
