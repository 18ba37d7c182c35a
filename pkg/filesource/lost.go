package filesource

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/labels"
)

// Lost is an object that is known to have been in force, and of which neither what
// stands in its source nor the last good version can be read.
type Lost struct {
	Object string // kind namespace/name, or what else is known of it
	Source string // the folder; empty: it was put through the API
	File   string
	Since  time.Time

	subjects []labels.Selector // nil: see all
	all      bool
}

// String names the object and since when it cannot be read.
func (l Lost) String() string {
	return fmt.Sprintf("%s, which is known to be in force, cannot be read since %s, and neither can its last good version", l.Object, clock(l.Since))
}

// selects reports whether the object may select pods with these labels.
func (l Lost) selects(ls labels.LabelArray) bool {
	return l.all || slices.ContainsFunc(l.subjects, func(s labels.Selector) bool { return s.Matches(ls) })
}

// Lost returns an object that cannot be read and may select pods with these labels.
// It never waits.
func (s *Source) Lost(ls labels.LabelArray) (Lost, bool) {
	list := s.lost.Load()
	if list == nil {
		return Lost{}, false
	}
	i := slices.IndexFunc(*list, func(l Lost) bool { return l.selects(ls) })
	if i < 0 {
		return Lost{}, false
	}
	return (*list)[i], true
}

// findLost lists what cannot be read.
func findLost(folders []*folder, api map[string]*file, snap *Snapshot, started time.Time) []Lost {
	var out []Lost
	for _, f := range folders {
		if !f.unknown.IsZero() {
			out = append(out, Lost{Object: "what " + f.path + " holds", Source: f.path, File: f.path, Since: f.unknown, all: true})
		}
		for _, path := range slices.Sorted(maps.Keys(f.files)) {
			out = append(out, lostOf(f.files[path], Lost{Source: f.path, File: path, Since: started}, snap)...)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(api)) {
		out = append(out, lostOf(api[id], Lost{Since: started}, snap)...)
	}
	return out
}

// lostOf lists what of a file cannot be read.
func lostOf(f *file, l Lost, snap *Snapshot) []Lost {
	var out []Lost
	for _, v := range f.versions {
		if v.contents != nil {
			continue
		}
		for _, p := range v.Policies {
			if _, elsewhere := snap.Policies[p.ID]; elsewhere {
				continue
			}
			one := l
			one.Object = objectName(p.ID)
			one.subjects, one.all = subjects(p)
			out = append(out, one)
		}
		for _, name := range v.Namespaces {
			if snap.Namespaces[name] == nil {
				one := l
				one.Object, one.subjects = "Namespace "+name, []labels.Selector{ofNamespace(name)}
				out = append(out, one)
			}
		}
		if v.Named { // policies may mean something else without what they name
			one := l
			one.Object = "a group, service or node of " + l.File
			for _, id := range slices.Sorted(maps.Keys(snap.uses)) {
				if len(snap.uses[id]) == 0 {
					continue
				}
				for _, p := range snap.Policies[id] {
					one.subjects = append(one.subjects, p.Subject)
				}
			}
			if len(one.subjects) > 0 {
				out = append(out, one)
			}
		}
	}
	return out
}

// subjects are the pods that a policy governs; where that is not known, those of
// its namespace, or all.
func subjects(p lastgood.Policy) (out []labels.Selector, all bool) {
	for _, s := range p.Subjects {
		out = append(out, labels.NewSelector(s...))
	}
	if len(out) > 0 {
		return out, false
	}
	if parts := strings.SplitN(p.ID, "/", 3); len(parts) == 3 && parts[1] != "" {
		return []labels.Selector{ofNamespace(parts[1])}, false
	}
	return nil, true
}

func ofNamespace(name string) labels.Selector {
	return labels.NewSelector(labels.Requirement{Source: labels.SourceK8s, Key: labels.KeyPodNamespace, Operator: labels.In, Values: []string{name}})
}

// objectName prints an id for people: "NetworkPolicy shop/web".
func objectName(id string) string {
	kind, name, _ := strings.Cut(id, "/")
	return cmp.Or(kind, "an object") + " " + strings.TrimPrefix(name, "/")
}

func clock(t time.Time) string { return t.UTC().Format(time.DateTime) + "Z" }
