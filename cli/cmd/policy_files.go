package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/lint"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
)

// policyPathHelp says how commands that read files without an agent read a PATH.
const policyPathHelp = "PATH is a file or a folder. A folder is read as the agent reads it, without those below; one that has no YAML\n" +
	"of its own stands for the folders below it, each on its own."

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
		sets, err := folderSets(p)
		if err != nil {
			return nil, err
		}
		if len(sets) == 0 {
			return nil, fmt.Errorf("%s holds no YAML and no folder that does; give the folder of the policies", p)
		}
		out = append(out, sets...)
	}
	if len(single.files) > 0 {
		single.path = single.files[0]
		out = append(out, single)
	}
	return out, nil
}

func folderSets(dir string) ([]fileSet, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading policies and pods: %w", err)
	}
	own := fileSet{path: dir}
	var below []fileSet
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch ext := filepath.Ext(name); {
		case e.Name()[0] == '.':
		case e.IsDir():
			sets, err := folderSets(name)
			if err != nil {
				return nil, err
			}
			below = append(below, sets...)
		case ext == ".yaml" || ext == ".yml" || ext == ".json":
			own.files = append(own.files, name)
		}
	}
	if len(own.files) > 0 {
		return []fileSet{own}, nil
	}
	return below, nil
}

// policyObjects reads the policy objects of files; what cannot be read is left
// out, filesource.Load reports it.
func policyObjects(files []string) ([]k8s.Object, error) {
	var out []k8s.Object
	for _, name := range files {
		text, err := os.ReadFile(name)
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
	filter := labels.DefaultFilter()
	known := map[string]bool{}
	for _, key := range s.PodOrder {
		p := s.Pods[key]
		own := labels.Pod{Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Cluster: clusterName, Labels: p.Labels}
		if n := s.Namespaces[p.Namespace]; n != nil {
			own.NamespaceLabels = n.Labels
		} else if !known[p.Namespace] {
			known[p.Namespace] = true
			w.Namespaces = append(w.Namespaces, lint.Namespace{Name: p.Namespace})
		}
		ids, _ := filter.Split(labels.PodLabels(own))
		pod := simulate.Pod{Name: key, Labels: ids, Addrs: p.IPs, NamedPorts: namedPorts(p.NamedPorts)}
		switch {
		case p.HostNetwork:
			pod.Addrs = nil
			w.HostPods = append(w.HostPods, pod)
		case !p.Ended():
			w.Pods = append(w.Pods, pod)
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

func namedPorts(ports []workload.NamedPort) types.NamedPorts {
	out := types.NamedPorts{}
	for _, p := range ports {
		out[types.NamedPort{Name: p.Name, Proto: p.Proto}] = p.Port
	}
	return out
}

// lintSet lints the files of one set.
func lintSet(set fileSet) (found []lint.Finding, policies, pods int, err error) {
	snap, problems, err := filesource.Load(set.files, filesource.Options{ClusterName: clusterName})
	if err != nil {
		return nil, 0, 0, err
	}
	objects, err := policyObjects(set.files)
	if err != nil {
		return nil, 0, 0, err
	}
	// What filesource refuses is reported once, by its problems; what it warns of is found by lint.
	o := k8s.Options{ClusterName: clusterName, Labels: labels.DefaultFilter(), References: snap.References}
	var good []k8s.Object
	for _, p := range objects {
		if _, err := k8s.Translate(p, o); err == nil {
			good = append(good, p)
		} else if fe := new(k8s.FieldError); !errors.As(err, &fe) {
			return nil, 0, 0, err
		}
	}
	for _, p := range problems {
		if !p.Warning {
			found = append(found, lint.Problem(p.File, p.Line, p.Field, p.Text))
		}
	}
	found = append(found, lint.Run(good, lintWorld(snap), o)...)
	slices.SortStableFunc(found, lint.Compare)
	return found, len(objects), len(snap.Pods), nil
}
