package lint

import (
	"maps"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
)

// A witness is the labels of a made-up pod that a selector matches. What a rule
// does with a pod that has more labels than a witness follows from the witness,
// as far as nothing is excluded by the labels that it has more: another rule that
// decided still matches, and still is the stronger one. So witnesses have the
// labels that their selector asks for, and every combination of those that some
// selector excludes.

// madeUp stands for any value of a label that only has to exist.
const madeUp = "made-up"

// maxWitnesses is the most witnesses of one selector.
const maxWitnesses = 64

// choices are values by key that make a difference where a pod has them.
type choices map[string][]string

func (c choices) add(key, value string) {
	if !slices.Contains(c[key], value) {
		c[key] = append(c[key], value)
	}
}

// exclude adds what a selector excludes.
func (c choices) exclude(s labels.Selector) { c.named(s, labels.NotIn, labels.DoesNotExist) }

// demand adds what a selector asks for.
func (c choices) demand(s labels.Selector) { c.named(s, labels.In, labels.Exists) }

// named adds the labels that a selector names by these operators.
func (c choices) named(s labels.Selector, withValues, keyAlone labels.Operator) {
	for _, r := range s.Requirements() {
		switch {
		case r.Source == labels.SourceReserved:
		case r.Operator == withValues:
			for _, v := range r.Values {
				c.add(r.Key, v)
			}
		case r.Operator == keyAlone:
			c.add(r.Key, madeUp)
		}
	}
}

// witnesses returns the witnesses of a selector. none where it contradicts
// itself or speaks of what is no pod; complete is false where there are too many.
func witnesses(s labels.Selector, c choices) (out []labels.LabelArray, complete bool) {
	byKey := map[string][]labels.Requirement{}
	for _, r := range s.Requirements() {
		if r.Source == labels.SourceReserved {
			return nil, true
		}
		byKey[r.Key] = append(byKey[r.Key], r)
	}
	for key := range c {
		if _, ok := byKey[key]; !ok {
			byKey[key] = nil
		}
	}
	sets := []labels.LabelArray{nil}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		rs := byKey[key]
		values, needed := candidates(rs, c[key])
		var next []labels.LabelArray
		for _, a := range sets {
			if !needed {
				next = append(next, a)
			}
			for _, v := range values {
				if len(next) > maxWitnesses {
					break
				}
				next = append(next, a.With(labels.New(sourceOf(rs), key, v)))
			}
		}
		if len(next) > maxWitnesses {
			return slices.DeleteFunc(next[:maxWitnesses], func(a labels.LabelArray) bool { return !s.Matches(a) }), false
		}
		sets = next
	}
	return slices.DeleteFunc(sets, func(a labels.LabelArray) bool { return !s.Matches(a) }), true
}

// candidates returns values that all requirements on one key accept, of those
// that make a difference; needed is false where a set without the key is accepted.
func candidates(rs []labels.Requirement, more []string) (values []string, needed bool) {
	var tried []string
	for _, r := range rs {
		if r.Operator == labels.In {
			tried = append(tried, r.Values...)
		}
		needed = needed || r.Operator == labels.In || r.Operator == labels.Exists
	}
	if tried = append(tried, more...); len(rs) > 0 {
		tried = append(tried, madeUp)
	}
	s := labels.NewSelector(rs...)
	for _, v := range tried {
		key := madeUp
		if len(rs) > 0 {
			key = rs[0].Key
		}
		if s.Matches(labels.NewLabelArray(labels.New(sourceOf(rs), key, v))) && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values, needed
}

// contradiction returns a key on which no value, nor its absence, is accepted by
// all requirements; empty where there is none.
func contradiction(s labels.Selector) string {
	type name struct{ source, key string }
	byName := map[name][]labels.Requirement{}
	for _, r := range s.Requirements() {
		n := name{r.Source, r.Key}
		byName[n] = append(byName[n], r)
		if values, needed := candidates(byName[n], nil); needed && len(values) == 0 {
			return r.Key
		}
	}
	return ""
}

// sourceOf is the source of a label that requirements on one key can match.
func sourceOf(rs []labels.Requirement) string {
	for _, r := range rs {
		if r.Source != labels.SourceAny {
			return r.Source
		}
	}
	return labels.SourceK8s
}
