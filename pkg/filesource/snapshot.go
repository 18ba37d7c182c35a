package filesource

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/policy/k8s"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
)

// Snapshot is everything that the folders say, one version of each object.
type Snapshot struct {
	Pods       map[string]*workload.Pod // by namespace/name
	Namespaces map[string]*workload.Namespace
	Nodes      map[string]*workload.Node
	APIServer  []netip.Addr                     // endpoints of the Service default/kubernetes, sorted
	Policies   map[string][]*policytypes.Policy // by resource id
	// References is what the policies were translated with.
	References *k8s.References
	// Ports are all declared container ports by pod, those without a name too.
	Ports map[string][]workload.NamedPort
	// PodOrder lists the pods as they stand in the files, files by name.
	PodOrder []string
	// Places are where the pods stand.
	Places map[string]Place

	uses map[string][]k8s.Use // of the policies, by resource id
}

// Place is where an object stands.
type Place struct {
	File string
	Line int // from 1
}

// Problem is something that a person must mend.
type Problem struct {
	File  string
	Line  int    // from 1; 0 unknown
	Field string // path in the object; empty: the file or object as a whole
	Text  string // what is wrong and what to do
	// Warning says that the object is in force all the same.
	Warning bool
}

// String prints "file:line: field: text", with "warning" after the line of one.
func (p Problem) String() string {
	s := p.File
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
	}
	if p.Warning {
		s += ": warning"
	}
	if p.Field != "" {
		s += ": " + p.Field
	}
	return s + ": " + p.Text
}

// Load reads folders or files once. Wrong files are left out and reported.
func Load(paths []string, o Options) (*Snapshot, []Problem, error) {
	var entries []entry
	var problems []Problem
	l := look{options: o}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, nil, fmt.Errorf("reading policies and pods: %w", err)
		}
		listing := Listing{Files: []string{p}}
		if info.IsDir() {
			if listing, err = Look(p); err != nil {
				return nil, nil, fmt.Errorf("reading policies and pods: %w", err)
			}
		}
		for _, dir := range slices.Sorted(maps.Keys(listing.Failed)) {
			problems = append(problems, Problem{File: dir, Text: listing.Failed[dir].Error()})
		}
		for _, r := range listing.Recipes {
			problems = append(problems, Problem{File: r.Dir, Text: r.String(), Warning: true})
		}
		for _, name := range listing.Files {
			r := l.read(name, nil)
			problems = append(problems, r.problems...)
			entries = append(entries, entry{path: name, contents: r.contents})
		}
	}
	snap, more := (&merger{options: o}).merge(entries)
	return snap, append(problems, more...), nil
}

// entry is what is in force of a file.
type entry struct {
	path     string
	contents *contents // nil: nothing
	// firm says that the file stays as it was: what it had, no other file takes.
	firm bool
	// rest says that these objects are not in the file any more.
	rest bool
}

// merger joins files to one whole, again and again.
type merger struct {
	options    Options
	references *k8s.References        // of the last time
	traced     map[string]*translated // of the last time: those that depend on references
	owner      map[string]string      // file of each object, of the last time
}

// problemsOf takes joined errors apart.
func problemsOf(err error, name string) []Problem {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []Problem
		for _, e := range joined.Unwrap() {
			out = append(out, problemsOf(e, name)...)
		}
		return out
	}
	var fe *k8s.FieldError
	if errors.As(err, &fe) {
		return []Problem{problemOf(fe, name)}
	}
	return []Problem{{File: name, Text: err.Error()}}
}

func problemOf(fe *k8s.FieldError, name string) Problem {
	text := fe.Problem
	if fe.Kind != "" {
		text = fmt.Sprintf("%s (%s %s)", text, fe.Kind, fe.Name)
	}
	return Problem{File: name, Line: fe.Line, Field: fe.Path, Text: text}
}

// Errors leaves out the warnings.
func Errors(problems []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool { return p.Warning })
}

// merge joins the files in the order of their names; the first file that has an
// object keeps it.
func (m *merger) merge(entries []entry) (*Snapshot, []Problem) {
	s := &Snapshot{
		Pods: map[string]*workload.Pod{}, Namespaces: map[string]*workload.Namespace{}, Nodes: map[string]*workload.Node{},
		Policies: map[string][]*policytypes.Policy{}, Ports: map[string][]workload.NamedPort{}, Places: map[string]Place{},
	}
	entries = slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return e.contents == nil })
	slices.SortStableFunc(entries, func(a, b entry) int {
		if a.rest != b.rest { // what left its file comes after what stands in one
			return map[bool]int{false: -1, true: 1}[a.rest]
		}
		return strings.Compare(a.path, b.path)
	})
	owner, policies, references := m.firm(entries), map[string]*translated{}, newCollector()
	s.uses = map[string][]k8s.Use{}
	var problems []Problem
	for _, e := range entries {
		taken := map[string]bool{}
		for _, id := range e.contents.order {
			first, ok := owner[id]
			if ok && first != e.path {
				taken[id] = true
				if !e.rest {
					problems = append(problems, Problem{File: e.path, Line: e.contents.lines[id], Text: fmt.Sprintf("%s stands in %s too, which counts; take one of them out", id, first)})
				}
				continue
			}
			owner[id] = e.path
		}
		s.take(e.path, e.contents, taken)
		references.take(e.contents, taken)
		for id, p := range e.contents.policies {
			if !taken[id] {
				policies[id], s.uses[id] = p, p.Uses
			}
		}
	}
	m.owner = owner
	problems = append(problems, s.dropForeign()...)
	s.References = references.all(s.Nodes)
	s.APIServer = references.addresses[apiServer]
	problems = append(problems, m.translate(s, policies)...)
	return s, slices.Clip(problems)
}

// firm are the objects that files which stay as they were had before.
func (m *merger) firm(entries []entry) map[string]string {
	owner := map[string]string{}
	for _, e := range entries {
		if !e.firm || e.rest {
			continue
		}
		for _, id := range e.contents.order {
			if m.owner[id] == e.path {
				owner[id] = e.path
			}
		}
	}
	return owner
}

// take adds a file's objects except those that another file holds.
func (s *Snapshot) take(file string, c *contents, taken map[string]bool) {
	for _, p := range c.pods {
		if !taken["Pod/"+p.Key()] {
			s.Pods[p.Key()] = p
			s.PodOrder = append(s.PodOrder, p.Key())
			s.Ports[p.Key()] = c.ports[p.Key()]
			s.Places[p.Key()] = Place{file, c.lines["Pod/"+p.Key()]}
		}
	}
	for _, n := range c.namespaces {
		if !taken["Namespace/"+n.Name] {
			s.Namespaces[n.Name] = n
		}
	}
	for _, n := range c.nodes {
		if !taken["Node/"+n.Name] {
			s.Nodes[n.Name] = n
		}
	}
}
