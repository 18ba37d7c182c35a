package simulate

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// A verdict can only differ where the rules that govern one of the ends differ,
// or who the other end is. Most changes of policies touch few pods, so that most
// pairs need not be asked about.

// change says what of an end differs between two clusters.
type change struct {
	egress, ingress bool // what its policies say
	self            bool // its labels, addresses or named ports
}

// newChanges compares the ends that both clusters have.
func newChanges(old, now *Cluster, names []string) []change {
	out := make([]change, len(names))
	words := dictionary{}
	a, b := texts{words, map[types.RuleID]uint64{}}, texts{words, map[types.RuleID]uint64{}}
	for i, name := range names {
		was, is := old.byName[name], now.byName[name]
		c := change{self: !slices.EqualFunc(was, is, sameEnd)}
		if len(was) > 0 && len(is) > 0 && was[0].Pod && is[0].Pod {
			before, after := old.Policy(was[0]), now.Policy(is[0])
			c.egress = c.self || a.direction(&before.Egress) != b.direction(&after.Egress)
			c.ingress = c.self || a.direction(&before.Ingress) != b.direction(&after.Ingress)
		}
		out[i] = c
	}
	return out
}

// sameEnd reports whether two ends are the same for the rules of others, whatever
// their numbers are.
func sameEnd(a, b End) bool {
	return a.Addr == b.Addr && a.Pod == b.Pod && withoutPrefix(a).Equal(withoutPrefix(b)) && maps.Equal(a.NamedPorts, b.NamedPorts)
}

// pair is a connection to ask about, and which directions of it may differ.
type pair struct {
	from, to        string
	ports           []Port
	egress, ingress bool
}

// pairsOf returns the pairs that may differ, in the order of the names, and how
// many connections they are.
func pairsOf(names []string, changes []change, portsOf func(string) []Port, only string) (iter.Seq[pair], int) {
	ports := make([][]Port, len(names))
	all, touched := make([]int, len(names)), []int{} // destinations: every one, and those that may answer anybody in another way
	for i, name := range names {
		ports[i], all[i] = distinct(portsOf(name)), i
		if changes[i].ingress || changes[i].self {
			touched = append(touched, i)
		}
	}
	mine := func(i int) bool { return only == "" || names[i] == only }
	others := func(i int) bool { return !mine(i) }
	allMine, touchedMine := slices.DeleteFunc(slices.Clone(all), others), slices.DeleteFunc(slices.Clone(touched), others)
	destinations := func(from int) []int {
		switch every := changes[from].egress || changes[from].self; {
		case every && mine(from):
			return all
		case every:
			return allMine
		case mine(from):
			return touched
		}
		return touchedMine
	}
	asked := 0
	for from := range names {
		for _, to := range destinations(from) {
			if from != to {
				asked += len(ports[to])
			}
		}
	}
	return func(yield func(pair) bool) {
		for from, a := range changes {
			for _, to := range destinations(from) {
				b := changes[to]
				if from != to && !yield(pair{names[from], names[to], ports[to], a.egress || b.self, b.ingress || a.self}) {
					return
				}
			}
		}
	}, asked
}

// dictionary gives equal texts equal numbers.
type dictionary map[string]uint64

func (d dictionary) of(text string) uint64 {
	n, ok := d[text]
	if !ok {
		n = uint64(len(d)) + 1
		d[text] = n
	}
	return n
}

// texts writes down what policies say so that two clusters can be compared.
type texts struct {
	words dictionary              // shared by the two
	rules map[types.RuleID]uint64 // by the numbers of one
}

// direction is equal for directions that judge every connection alike.
func (t *texts) direction(d *policy.DirectionPolicy) uint64 {
	out := []byte{byte(d.Default.Verdict)}
	if d.LocalNode != nil {
		out = append(out, byte(d.LocalNode.Verdict))
	}
	for i := range d.Rules {
		out = binary.AppendUvarint(out, t.rule(&d.Rules[i]))
	}
	return t.words.of(string(out))
}

func (t *texts) rule(r *policy.ResolvedRule) uint64 {
	n, ok := t.rules[r.ID]
	if ok {
		return n
	}
	text := fmt.Sprintf("rule %d %v %v %v", r.Precedence, r.Verdict, r.Peers == nil, r.Ports == nil)
	for _, p := range r.Peers {
		text += fmt.Sprintf(" %q", policy.PeerKey(p))
	}
	for _, p := range r.Ports {
		text += fmt.Sprintf(" %+v", p)
	}
	n = t.words.of(text)
	t.rules[r.ID] = n
	return n
}

// withoutPrefix leaves out the prefix that the policies give an address: it says
// no more than the address.
func withoutPrefix(e End) labels.LabelArray {
	return slices.DeleteFunc(slices.Clone(e.Labels), func(l labels.Label) bool {
		_, is := l.Prefix()
		return is
	})
}
