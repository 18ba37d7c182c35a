package lint

import (
	"slices"

	"github.com/weirnet/weir/pkg/labels"
)

// A witness is the labels of a made-up pod that a selector matches and that has
// nothing the selector does not ask for.

// madeUp stands for any value of a label that only has to exist.
const madeUp = "made-up"

// witnesses returns label sets that the selector matches: one per combination of
// nothing and one of the extra labels. None where the selector contradicts
// itself, or speaks of what is no pod.
func witnesses(s labels.Selector, extra []labels.Label) []labels.LabelArray {
	rs := s.Requirements()
	byKey := map[string][]labels.Requirement{}
	var keys []string
	for _, r := range rs {
		if r.Source == labels.SourceReserved {
			return nil
		}
		if _, ok := byKey[r.Key]; !ok {
			keys = append(keys, r.Key)
		}
		byKey[r.Key] = append(byKey[r.Key], r)
	}
	base := [][]labels.Label{nil}
	for _, k := range keys {
		values, needed := candidates(byKey[k])
		if needed && len(values) == 0 {
			return nil
		}
		if !needed {
			continue
		}
		var next [][]labels.Label
		for _, set := range base {
			for _, v := range values[:min(len(values), 4)] {
				next = append(next, append(slices.Clone(set), labels.New(sourceOf(byKey[k]), k, v)))
			}
		}
		base = next[:min(len(next), 16)]
	}
	var out []labels.LabelArray
	for _, set := range base {
		for i := -1; i < len(extra); i++ {
			a := labels.NewLabelArray(set...)
			if i >= 0 {
				if _, has := a.Get(extra[i].Source, extra[i].Key); has {
					continue
				}
				a = a.With(extra[i])
			}
			if s.Matches(a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// candidates returns values that all requirements on one key accept; needed is
// false where a set without the key does.
func candidates(rs []labels.Requirement) (values []string, needed bool) {
	tried := []string{madeUp}
	for _, r := range rs {
		if r.Operator == labels.In {
			tried = append(slices.Clone(r.Values), tried...)
		}
		needed = needed || r.Operator == labels.In || r.Operator == labels.Exists
	}
	for _, v := range tried {
		if labels.NewSelector(rs...).Matches(labels.NewLabelArray(labels.New(sourceOf(rs), rs[0].Key, v))) && !slices.Contains(values, v) {
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
		if values, needed := candidates(byName[n]); needed && len(values) == 0 {
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

// excludedLabels returns a label per key that some selector excludes, so that
// witnesses with it show what such a selector leaves out.
func excludedLabels(selectors []labels.Selector) []labels.Label {
	var out []labels.Label
	for _, s := range selectors {
		for _, r := range s.Requirements() {
			if r.Source == labels.SourceReserved || r.Operator != labels.NotIn && r.Operator != labels.DoesNotExist {
				continue
			}
			v := madeUp
			if r.Operator == labels.NotIn && len(r.Values) > 0 {
				v = r.Values[0]
			}
			if l := labels.New(labels.SourceK8s, r.Key, v); !slices.Contains(out, l) && len(out) < 8 {
				out = append(out, l)
			}
		}
	}
	return out
}
