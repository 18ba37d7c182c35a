package folder

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/testfile"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// Folder is what was read.
type Folder struct {
	Path   string
	Sketch simulate.Sketch
	Tests  []*testfile.File
	Broken []Broken // tests that cannot be read
}

// Broken is a test that cannot be read.
type Broken struct {
	Path string
	Err  error
}

// Read reads a folder, or a file together with the folder that it stands in; of
// the tests then only those of the file count.
func Read(path string, o filesource.Options, mode policytypes.Mode) (*Folder, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading policies and pods: %w", err)
	}
	f := &Folder{Path: path}
	if !info.IsDir() {
		f.Path = filepath.Dir(path)
	}
	files, err := filesource.List(path)
	if err != nil {
		return nil, fmt.Errorf("reading tests: %w", err)
	}
	for _, name := range files {
		if err := f.readTests(name); err != nil {
			return nil, err
		}
	}
	snap, problems, err := filesource.Load([]string{f.Path}, o)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range problems {
		isBroken := slices.ContainsFunc(f.Broken, func(b Broken) bool { return b.Path == p.File })
		if !p.Warning && !isBroken {
			errs = append(errs, errors.New(p.String()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s cannot be judged:\n%w", f.Path, err)
	}
	f.Sketch = Sketch(snap, o.ClusterName)
	f.Sketch.Mode, f.Sketch.Filter = mode, o.Labels
	hosts, err := Outside(filepath.Join(f.Path, "lab", "outside.yaml"))
	if err != nil {
		return nil, err
	}
	f.Sketch.Hosts = append(hosts, f.Sketch.Hosts...)
	return f, nil
}

// Cluster is the folder's own world, without what its tests add.
func (f *Folder) Cluster() (*simulate.Cluster, error) {
	w, err := f.Sketch.World()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	c, err := simulate.New(w, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	return c, nil
}

// readTests reads the tests of a file. Other objects are passed over: filesource
// reports what is wrong with them. A text that is no YAML is a broken test if its
// name says that it holds tests.
func (f *Folder) readTests(name string) error {
	text, err := filesource.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading tests: %w", err)
	}
	isTest, _ := filepath.Match("*_test.y*ml", filepath.Base(name))
	if !isTest && !testfile.MayHold(text) {
		return nil
	}
	docs, err := k8s.Split(text, name)
	if err != nil && isTest {
		f.Broken = append(f.Broken, Broken{name, err})
	}
	for _, d := range docs {
		if !testfile.Is(d) {
			continue
		}
		t, err := testfile.Read(d)
		if err != nil {
			f.Broken = append(f.Broken, Broken{name, err})
			continue
		}
		f.Tests = append(f.Tests, t)
	}
	return nil
}

// Sketch turns what was read into a world. Pods in the node's network are the
// node; those that have ended are nobody.
func Sketch(snap *filesource.Snapshot, cluster string) simulate.Sketch {
	s := simulate.Sketch{Cluster: cluster, Namespaces: map[string]map[string]string{}}
	for name, n := range snap.Namespaces {
		s.Namespaces[name] = n.Labels
	}
	for _, key := range snap.PodOrder {
		if snap.Pods[key].OwnsAddresses() {
			s.Pods = append(s.Pods, Pod(snap, key))
		}
	}
	for _, h := range snap.Hosts() {
		if h.Local {
			h.Name = simulate.NodeName
		}
		s.Hosts = append(s.Hosts, simulate.SketchedHost{Host: simulate.Host{Name: h.Name, Addrs: h.Addrs, Labels: h.Labels}})
	}
	for _, id := range slices.Sorted(maps.Keys(snap.Policies)) {
		s.Policies = append(s.Policies, snap.Policies[id]...)
	}
	return s
}

// Pod is a pod of those that were read, as one of a sketch.
func Pod(snap *filesource.Snapshot, key string) simulate.SketchedPod {
	p := snap.Pods[key]
	pod := simulate.SketchedPod{Namespace: p.Namespace, Name: p.Name, ServiceAccount: p.ServiceAccount, Labels: p.Labels, Addrs: p.IPs}
	for _, port := range snap.Ports[key] {
		pod.Ports = append(pod.Ports, simulate.Port{Name: port.Name, Proto: port.Proto, Port: port.Port})
	}
	return pod
}
