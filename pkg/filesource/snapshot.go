package filesource

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

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
	r := newReader(o)
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			return nil, nil, fmt.Errorf("reading policies and pods: %w", err)
		}
	}
	snap, problems := r.scan(paths)
	return snap, problems, nil
}

// reader keeps the last good version of every file.
type reader struct {
	options    Options
	files      map[string]*file
	references *k8s.References        // of the last scan
	traced     map[string]*translated // of the last scan: those that depend on references
}

type file struct {
	text     string    // as last read
	good     *contents // last version without problems; nil: none yet
	problems []Problem
}

func newReader(o Options) *reader { return &reader{options: o, files: map[string]*file{}} }

// scan reads what changed below the paths and returns the merged whole. A
// folder or file that cannot be read is a problem and keeps its last good version.
func (r *reader) scan(paths []string) (*Snapshot, []Problem) {
	var problems []Problem
	seen := map[string]bool{}
	for _, p := range paths {
		names, err := List(p)
		if err != nil {
			problems = append(problems, Problem{File: p, Text: err.Error()})
			for name := range r.files {
				if filepath.Dir(name) == p {
					seen[name] = true // keep what was known of an unreadable folder
				}
			}
			continue
		}
		for _, name := range names {
			seen[name] = true
			r.read(name)
		}
	}
	maps.DeleteFunc(r.files, func(name string, _ *file) bool { return !seen[name] })
	return r.merge(problems)
}

// List names the files of a folder that are read, or the file itself.
func List(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if !e.IsDir() && e.Name()[0] != '.' && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	return out, nil
}

// read brings one file up to date.
func (r *reader) read(name string) {
	f := r.files[name]
	if f == nil {
		f = &file{}
		r.files[name] = f
	}
	info, err := os.Stat(name)
	if err == nil && info.Size() > k8s.MaxBytes {
		err = fmt.Errorf("has %d bytes, the most is %d; split it into several files", info.Size(), k8s.MaxBytes)
	}
	var text []byte
	if err == nil {
		text, err = ReadFile(name)
	}
	if err != nil {
		f.text, f.problems = "", []Problem{{File: name, Text: err.Error()}}
		return
	}
	if f.text == string(text) && (f.good != nil || f.problems != nil) && len(text) > 0 {
		return
	}
	f.text = string(text)
	good, err := parse(text, name, r.options)
	if err != nil {
		f.problems = problemsOf(err, name)
		return
	}
	f.good, f.problems = good, nil
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

// merge joins the files in the order of their names; the first file that has
// an object keeps it.
func (r *reader) merge(problems []Problem) (*Snapshot, []Problem) {
	s := &Snapshot{
		Pods: map[string]*workload.Pod{}, Namespaces: map[string]*workload.Namespace{}, Nodes: map[string]*workload.Node{},
		Policies: map[string][]*policytypes.Policy{}, Ports: map[string][]workload.NamedPort{}, Places: map[string]Place{},
	}
	owner, policies, references := map[string]string{}, map[string]*translated{}, newCollector()
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		f := r.files[name]
		problems = append(problems, f.problems...)
		if f.good == nil {
			continue
		}
		taken := map[string]bool{}
		for _, id := range f.good.order {
			if first, ok := owner[id]; ok {
				taken[id] = true
				problems = append(problems, Problem{File: name, Line: f.good.lines[id], Text: fmt.Sprintf("%s stands in %s too, which counts; take one of them out", id, first)})
				continue
			}
			owner[id] = name
		}
		s.take(name, f.good, taken)
		references.take(f.good, taken)
		for id, p := range f.good.policies {
			if !taken[id] {
				policies[id] = p
			}
		}
	}
	s.References = references.all(s.Nodes)
	s.APIServer = references.addresses[apiServer]
	problems = append(problems, r.translate(s, policies)...)
	return s, slices.Clip(problems)
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
