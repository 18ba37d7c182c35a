package filesource

import (
	"maps"
	"reflect"
	"slices"
)

// Change is what a look at the folders changed of the objects in force.
type Change struct {
	File     string   // in which they stand, or stood; empty: not known
	Put      []string // objects that are new or changed: "Pod shop/api"
	Gone     []string
	Start    bool   // the first look, at all files: everything is new to the agent
	Revision uint64 // of the policies that has the change
}

// placed is an object and the file that it stands in.
type placed struct {
	file   string
	object any
}

// objects are those of a snapshot by the names that people give them.
func (s *Snapshot) objects() map[string]placed {
	out := map[string]placed{}
	for _, ps := range s.Policies {
		if len(ps) > 0 {
			out[ps[0].Resource.String()] = placed{ps[0].Resource.File, ps}
		}
	}
	for key, p := range s.Pods {
		out["Pod "+key] = placed{s.Places[key].File, p}
	}
	for name, n := range s.Namespaces {
		out["Namespace "+name] = placed{"", n}
	}
	for name, n := range s.Nodes {
		out["Node "+name] = placed{"", n}
	}
	return out
}

// tellChanges tells what differs between two snapshots, file by file; the first look
// is told in one. What was put through the API is told by the API.
func (s *Source) tellChanges(old, new *Snapshot) {
	if s.cfg.Changed == nil {
		return
	}
	revision := s.cfg.Policies.Revision()
	if old.Pods == nil { // the snapshot before the first
		s.cfg.Changed(Change{Put: slices.Sorted(maps.Keys(new.objects())), Start: true, Revision: revision})
		return
	}
	for _, c := range changes(old, new) {
		if c.File == "" || !s.isOwn(c.File) {
			c.Revision = revision
			s.cfg.Changed(c)
		}
	}
}

// changes lists by file what differs between two snapshots.
func changes(old, new *Snapshot) []Change {
	before, after := old.objects(), new.objects()
	byFile := map[string]Change{}
	for name, now := range after {
		if was, ok := before[name]; !ok || !reflect.DeepEqual(was, now) {
			c := byFile[now.file]
			c.Put = append(c.Put, name)
			byFile[now.file] = c
		}
	}
	for name, was := range before {
		if _, still := after[name]; !still {
			c := byFile[was.file]
			c.Gone = append(c.Gone, name)
			byFile[was.file] = c
		}
	}
	var out []Change
	for _, file := range slices.Sorted(maps.Keys(byFile)) {
		c := byFile[file]
		c.File = file
		slices.Sort(c.Put)
		slices.Sort(c.Gone)
		out = append(out, c)
	}
	return out
}
