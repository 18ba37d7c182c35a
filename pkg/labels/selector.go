package labels

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Operator is how a requirement compares, with the meaning of Kubernetes label
// selectors.
type Operator uint8

const (
	// In matches a label whose value is one of Values.
	In Operator = iota
	// NotIn matches what In does not, so also a set without the key.
	NotIn
	// Exists matches a label with any value.
	Exists
	// DoesNotExist matches a set without the key.
	DoesNotExist
)

// String prints "in", "notin", "exists" or "!".
func (o Operator) String() string {
	switch o {
	case In:
		return "in"
	case NotIn:
		return "notin"
	case Exists:
		return "exists"
	case DoesNotExist:
		return "!"
	}
	return "operator" + strconv.Itoa(int(o))
}

// Requirement is one condition on a set of labels.
type Requirement struct {
	Source   string // SourceAny (or empty) looks at every source
	Key      string
	Operator Operator
	Values   []string // of In and NotIn; In without values matches nothing
}

// Selector is the conjunction of its requirements. The zero value matches
// everything. It is immutable.
type Selector struct {
	requirements []Requirement
	key          string
}

// NewSelector makes a selector. The order of requirements and values and
// repetitions make no difference.
func NewSelector(rs ...Requirement) Selector {
	out := make([]Requirement, 0, len(rs))
	for _, r := range rs {
		if r.Source == "" {
			r.Source = SourceAny
		}
		if r.Operator == In || r.Operator == NotIn {
			r.Values = slices.Clone(r.Values)
			slices.Sort(r.Values)
			r.Values = slices.Compact(r.Values)
		} else {
			r.Values = nil
		}
		out = append(out, r)
	}
	slices.SortFunc(out, compareRequirements)
	out = slices.CompactFunc(out, func(a, b Requirement) bool { return compareRequirements(a, b) == 0 })
	if len(out) == 0 {
		return Selector{}
	}
	var b strings.Builder
	for _, r := range out {
		b.WriteString(escapeName(r.Source) + ":" + escapeName(r.Key) + "=" + r.Operator.String())
		for _, v := range r.Values {
			b.WriteByte(':')
			b.WriteString(escapeName(v))
		}
		b.WriteByte(';')
	}
	return Selector{requirements: out, key: b.String()}
}

// Equals returns a selector for one label.
func Equals(l Label) Selector {
	return NewSelector(Requirement{Source: l.Source, Key: l.Key, Operator: In, Values: []string{l.Value}})
}

func compareRequirements(a, b Requirement) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key),
		cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
}

// Matches reports whether every requirement holds for the set.
func (s Selector) Matches(a LabelArray) bool {
	for i := range s.requirements {
		if !s.requirements[i].matches(a) {
			return false
		}
	}
	return true
}

func (r *Requirement) matches(a LabelArray) bool {
	found := false
	if r.Source != SourceAny {
		i := a.search(r.Source, r.Key)
		found = i >= 0 && r.holds(a[i].Value)
	} else {
		for i := range a {
			if a[i].Key == r.Key && r.holds(a[i].Value) {
				found = true
				break
			}
		}
	}
	return found == (r.Operator == In || r.Operator == Exists)
}

// holds is the positive half of the operator, for a label that exists.
func (r *Requirement) holds(value string) bool {
	if r.Operator == Exists || r.Operator == DoesNotExist {
		return true
	}
	_, ok := slices.BinarySearch(r.Values, value)
	return ok
}

// With returns a selector that demands more.
func (s Selector) With(rs ...Requirement) Selector {
	return NewSelector(slices.Concat(s.requirements, rs)...)
}

// Requirements returns a copy, in canonical order.
func (s Selector) Requirements() []Requirement {
	out := slices.Clone(s.requirements)
	for i := range out {
		out[i].Values = slices.Clone(out[i].Values)
	}
	return out
}

// IsEmpty reports whether the selector matches everything because it demands nothing.
func (s Selector) IsEmpty() bool { return len(s.requirements) == 0 }

// Key is the canonical form: two selectors with the same requirements have the
// same Key and no others do. The zero value has "".
func (s Selector) Key() string { return s.key }

// String prints the selector for people: "k8s:app=web, any:tier in (a,b), !any:x".
func (s Selector) String() string {
	if s.IsEmpty() {
		return "everything"
	}
	parts := make([]string, len(s.requirements))
	for i, r := range s.requirements {
		name := r.Source + ":" + r.Key
		switch {
		case r.Operator == Exists:
			parts[i] = name
		case r.Operator == DoesNotExist:
			parts[i] = "!" + name
		case r.Operator == In && len(r.Values) == 1:
			parts[i] = name + "=" + r.Values[0]
		case r.Operator == NotIn && len(r.Values) == 1:
			parts[i] = name + "!=" + r.Values[0]
		default:
			parts[i] = name + " " + r.Operator.String() + " (" + strings.Join(r.Values, ",") + ")"
		}
	}
	return strings.Join(parts, ", ")
}
