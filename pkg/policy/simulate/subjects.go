package simulate

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// subjects finds the policies that may select a pod without a look at all of
// them: nearly every policy demands a label with a value.
type subjects struct {
	policies []*types.Policy
	byLabel  map[string][]int // those that demand one of these values of a label
	others   []int            // those that demand no value
}

// newSubjects files each policy under the label that it demands of which there
// are few values in its selector and many in those of the others.
func newSubjects(policies []*types.Policy) *subjects {
	s := &subjects{policies: policies, byLabel: map[string][]int{}}
	values := map[string]map[string]bool{} // by key
	demanded := make([][]labels.Requirement, len(policies))
	for i, p := range policies {
		for _, r := range p.Subject.Requirements() {
			if r.Operator != labels.In {
				continue
			}
			demanded[i] = append(demanded[i], r)
			if values[r.Key] == nil {
				values[r.Key] = map[string]bool{}
			}
			for _, v := range r.Values {
				values[r.Key][v] = true
			}
		}
	}
	for i, rs := range demanded {
		if len(rs) == 0 {
			s.others = append(s.others, i)
			continue
		}
		best := slices.MinFunc(rs, func(a, b labels.Requirement) int {
			return len(a.Values)*len(values[b.Key]) - len(b.Values)*len(values[a.Key])
		})
		for _, v := range best.Values {
			key := labelKey(best.Key, v)
			s.byLabel[key] = append(s.byLabel[key], i)
		}
	}
	return s
}

func labelKey(key, value string) string { return key + "\x00" + value }

// of returns, in their order, all policies that select these labels and some
// that do not.
func (s *subjects) of(a labels.LabelArray) []*types.Policy {
	at := slices.Clone(s.others)
	for _, l := range a {
		at = append(at, s.byLabel[labelKey(l.Key, l.Value)]...)
	}
	slices.Sort(at)
	at = slices.Compact(at)
	out := make([]*types.Policy, len(at))
	for i, n := range at {
		out[i] = s.policies[n]
	}
	return out
}

// stateKey is equal for pods that have the same map state: the same rules govern
// them, and their own ports have the same names.
func stateKey(sp *policy.SelectorPolicy) string {
	var key []byte
	for _, d := range []*policy.DirectionPolicy{&sp.Ingress, &sp.Egress} {
		key = binary.AppendUvarint(key, uint64(d.Default.ID))
		key = binary.AppendUvarint(key, uint64(len(d.Rules)))
		for i := range d.Rules {
			key = binary.AppendUvarint(key, uint64(d.Rules[i].ID))
		}
	}
	var ports []string
	for name, number := range sp.Subject.NamedPorts {
		ports = append(ports, fmt.Sprintf("%s=%d", name, number))
	}
	slices.Sort(ports)
	return fmt.Sprintf("%s %q", key, ports)
}
