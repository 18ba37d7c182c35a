package cmd

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/weirnet/weir/cli/folder"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/lint"
	"github.com/weirnet/weir/pkg/policy/simulate"
)

// policyPathHelp says how commands that read files without an agent read a PATH.
const policyPathHelp = "PATH is a file or a folder. A folder is read as the agent reads it, with the folders below it; not read are hidden\n" +
	"ones, links to folders, and folders with a kustomization.yaml or Chart.yaml."

// clusterName is that of pods and policies where no agent says it.
const clusterName = "default"

// fileSet is files that are read together, as the agent would read them.
type fileSet struct {
	path  string // the folder, or the first file
	files []string
}

// fileSets finds the YAML files of the paths: the files given are one set,
// and each folder is one.
func fileSets(paths []string) ([]fileSet, error) {
	var single fileSet
	var out []fileSet
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("reading policies and pods: %w", err)
		}
		if !info.IsDir() {
			single.files = append(single.files, p)
			continue
		}
		files, err := filesource.Files(p)
		if err != nil {
			return nil, err
		}
		out = append(out, fileSet{p, files})
	}
	if len(single.files) > 0 {
		single.path = single.files[0]
		out = append(out, single)
	}
	return out, nil
}

// policyObjects reads the policy objects of files; what cannot be read is left
// out, filesource.Load reports it.
func policyObjects(files []string) ([]k8s.Object, error) {
	var out []k8s.Object
	for _, name := range files {
		text, err := filesource.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading policies and pods: %w", err)
		}
		docs, _ := k8s.Split(text, name)
		for _, d := range docs {
			if !d.IsPolicy() {
				continue
			}
			if o, err := d.Policy(); err == nil {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

// lintWorld turns what was read into what lint knows.
func lintWorld(s *filesource.Snapshot) lint.World {
	var w lint.World
	sketch := folder.Sketch(s, clusterName)
	sketch.Filter = labels.DefaultFilter()
	for _, p := range sketch.Pods {
		w.Pods = append(w.Pods, sketch.Pod(p))
	}
	named := map[string]bool{} // namespaces of pods, without an object of their own
	for _, key := range s.PodOrder {
		p := s.Pods[key]
		if s.Namespaces[p.Namespace] == nil && !named[p.Namespace] {
			named[p.Namespace] = true
			at := s.Places[key]
			w.Namespaces = append(w.Namespaces, lint.Namespace{Name: p.Namespace, Implied: true, File: at.File, Line: at.Line})
		}
		if p.HostNetwork {
			w.HostPods = append(w.HostPods, sketch.Pod(folder.Pod(s, key)))
		}
	}
	for _, n := range s.Namespaces {
		w.Namespaces = append(w.Namespaces, lint.Namespace{Name: n.Name, Labels: n.Labels})
	}
	slices.SortFunc(w.Namespaces, func(a, b lint.Namespace) int { return slices.Compare([]string{a.Name}, []string{b.Name}) })
	for _, h := range s.Hosts() {
		w.Nodes = append(w.Nodes, simulate.Host{Name: "node " + h.Name, Addrs: h.Addrs, Labels: h.Labels})
	}
	return w
}

// lintSet lints the files of one set.
func lintSet(set fileSet) (found []lint.Finding, leftOut []string, policies, pods int, err error) {
	snap, problems, err := filesource.Load(set.files, filesource.Options{ClusterName: clusterName})
	if err != nil {
		return nil, nil, 0, 0, err
	}
	objects, err := policyObjects(set.files)
	if err != nil {
		return nil, nil, 0, 0, err
	}
	// What filesource refuses is reported once, by its problems; what it warns of is found by lint.
	o := k8s.Options{ClusterName: clusterName, Labels: labels.DefaultFilter(), References: snap.References}
	var good []k8s.Object
	for _, p := range objects {
		if _, err := k8s.Translate(p, o); err == nil {
			good = append(good, p)
		} else if fe := new(k8s.FieldError); !errors.As(err, &fe) {
			return nil, nil, 0, 0, err
		}
	}
	for _, p := range problems {
		if !p.Warning {
			found = append(found, lint.Problem(p.File, p.Line, p.Field, p.Text))
		}
	}
	more, leftOut := lint.Check(good, lintWorld(snap), o)
	found = append(found, more...)
	slices.SortStableFunc(found, lint.Compare)
	return found, leftOut, len(objects), len(snap.Pods), nil
}
