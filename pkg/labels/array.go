package labels

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// LabelArray is a set of labels, sorted by source and key, one label per source
// and key. It is immutable once made by NewLabelArray. nil is the empty set.
type LabelArray []Label

// NewLabelArray makes a set. An empty source becomes SourceUnspec, labels with
// an empty key are left out, and of labels with the same source and key the
// last one given stays.
func NewLabelArray(ls ...Label) LabelArray {
	out := make(LabelArray, 0, len(ls))
	for _, l := range ls {
		if l.Key != "" {
			l.Source = l.source()
			out = append(out, l)
		}
	}
	slices.SortStableFunc(out, func(a, b Label) int { return a.compareName(b.Source, b.Key) })
	n := 0
	for i, l := range out {
		if i > 0 && out[n-1].compareName(l.Source, l.Key) == 0 {
			out[n-1] = l
			continue
		}
		out[n] = l
		n++
	}
	if n == 0 {
		return nil
	}
	return slices.Clip(out[:n])
}

// ParseArray reads one label per argument, as Parse does.
func ParseArray(texts ...string) (LabelArray, error) {
	ls := make([]Label, 0, len(texts))
	for _, s := range texts {
		l, err := Parse(s)
		if err != nil {
			return nil, err
		}
		ls = append(ls, l)
	}
	return NewLabelArray(ls...), nil
}

// Key is the canonical form "source:key=value;source:key=value;" in order. Two
// sets have the same Key exactly when they are equal; the empty set has "".
func (a LabelArray) Key() string {
	var b strings.Builder
	for _, l := range a {
		l.appendKey(&b)
	}
	return b.String()
}

// ParseKey reads what Key wrote. It refuses text that Key cannot have written.
func ParseKey(s string) (LabelArray, error) {
	var ls []Label
	for rest := s; rest != ""; {
		end := unescapedSemicolon(rest)
		if end < 0 {
			return nil, fmt.Errorf("label set %q: the last label does not end in ';'", s)
		}
		l, err := Parse(rest[:end])
		if err != nil {
			return nil, fmt.Errorf("label set %q: %w", s, err)
		}
		ls, rest = append(ls, l), rest[end+1:]
	}
	a := NewLabelArray(ls...)
	if a.Key() != s {
		return nil, fmt.Errorf("label set %q is not in canonical form %q", s, a.Key())
	}
	return a, nil
}

// unescapedSemicolon is the index of the first ';' that no backslash precedes, or -1.
func unescapedSemicolon(s string) int {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case ';':
			return i
		}
	}
	return -1
}

// Get returns the value of the label with that source and key. SourceAny looks
// at every source and returns the first in order.
func (a LabelArray) Get(source, key string) (string, bool) {
	if source == SourceAny {
		for _, l := range a {
			if l.Key == key {
				return l.Value, true
			}
		}
		return "", false
	}
	if i := a.search(source, key); i >= 0 {
		return a[i].Value, true
	}
	return "", false
}

func (a LabelArray) search(source, key string) int {
	i := sort.Search(len(a), func(i int) bool { return a[i].compareName(source, key) >= 0 })
	if i < len(a) && a[i].Source == source && a[i].Key == key {
		return i
	}
	return -1
}

// HasReserved reports whether the set holds reserved:name.
func (a LabelArray) HasReserved(name string) bool { return a.search(SourceReserved, name) >= 0 }

// HasWorld reports whether the set stands for addresses outside the cluster:
// it holds one of the three world labels.
func (a LabelArray) HasWorld() bool {
	return a.HasReserved(NameWorld) || a.HasReserved(NameWorldIPv4) || a.HasReserved(NameWorldIPv6)
}

// Equal reports whether both hold the same labels.
func (a LabelArray) Equal(o LabelArray) bool { return slices.Equal(a, o) }

// With returns a new set with more labels; they replace those of the same
// source and key.
func (a LabelArray) With(ls ...Label) LabelArray {
	return NewLabelArray(slices.Concat(a, ls)...)
}

// Labels returns the set as a map by key. Where two sources hold the same key
// the first source in order stays.
func (a LabelArray) Labels() Labels {
	m := make(Labels, len(a))
	for _, l := range a {
		if _, ok := m[l.Key]; !ok {
			m[l.Key] = l
		}
	}
	return m
}

// Strings prints every label.
func (a LabelArray) Strings() []string {
	out := make([]string, len(a))
	for i, l := range a {
		out[i] = l.String()
	}
	return out
}

// String prints the labels for people, separated by ", ".
func (a LabelArray) String() string { return strings.Join(a.Strings(), ", ") }

// Labels is a set by key. Unlike a LabelArray it holds one label per key,
// whatever the source.
type Labels map[string]Label
