package filesource

import (
	"path/filepath"
	"reflect"
	"testing"

	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
)

func TestN52ChangesAreListedByFile(t *testing.T) {
	policy := func(name, file string) []*policytypes.Policy {
		return []*policytypes.Policy{{Resource: policytypes.Resource{Kind: "NetworkPolicy", Namespace: "x", Name: name, File: file}}}
	}
	pod := func(name, image string) *workload.Pod { return &workload.Pod{Namespace: "x", Name: name, UID: image} }
	old := &Snapshot{
		Pods:     map[string]*workload.Pod{"x/a": pod("a", "1"), "x/b": pod("b", "1"), "x/c": pod("c", "1")},
		Places:   map[string]Place{"x/a": {File: "pods.yaml"}, "x/b": {File: "pods.yaml"}, "x/c": {File: "more.yaml"}},
		Policies: map[string][]*policytypes.Policy{"1": policy("moves", "p.yaml"), "2": policy("goes", "p.yaml"), "3": policy("stays", "q.yaml")},
	}
	now := &Snapshot{
		Pods:       map[string]*workload.Pod{"x/a": pod("a", "1"), "x/b": pod("b", "2"), "x/d": pod("d", "1")},
		Places:     map[string]Place{"x/a": {File: "pods.yaml"}, "x/b": {File: "pods.yaml"}, "x/d": {File: "pods.yaml"}},
		Policies:   map[string][]*policytypes.Policy{"1": policy("moves", "r.yaml"), "3": policy("stays", "q.yaml")},
		Namespaces: map[string]*workload.Namespace{"x": {Name: "x"}},
	}
	want := []Change{
		{File: "", Put: []string{"Namespace x"}},
		{File: "more.yaml", Gone: []string{"Pod x/c"}},
		{File: "p.yaml", Gone: []string{"NetworkPolicy x/goes"}},
		{File: "pods.yaml", Put: []string{"Pod x/b", "Pod x/d"}},
		{File: "r.yaml", Put: []string{"NetworkPolicy x/moves"}},
	}
	if got := changes(old, now); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := changes(now, now); len(got) != 0 {
		t.Errorf("nothing changed, and told is %+v", got)
	}
}

func TestN52ASourceTellsOfChangedFilesAndNotOfTheAPI(t *testing.T) {
	s, _, _, dir := newSource(t)
	var told []Change
	s.cfg.Changed = func(c Change) {
		if c.Revision == 0 && !c.Start {
			t.Errorf("a change has no revision: %+v", c)
		}
		c.Revision = 0
		told = append(told, c)
	}
	expect := func(when string, want ...Change) {
		t.Helper()
		if !reflect.DeepEqual(told, want) {
			t.Errorf("%s: told %+v, want %+v", when, told, want)
		}
		told = nil
	}
	put(t, dir, "a.yaml", podA)
	scan(t, s)
	expect("the start", Change{Put: []string{"Pod x/a"}, Start: true})
	put(t, dir, "b.yaml", denyAll)
	scan(t, s)
	expect("a new file", Change{File: filepath.Join(dir, "b.yaml"), Put: []string{"NetworkPolicy x/deny"}})
	scan(t, s)
	expect("nothing changed")
	put(t, dir, "b.yaml", "kind: NetworkPolicy\n")
	scan(t, s)
	expect("a broken file changes nothing")
	if _, _, _, err := s.Put([]byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: own, namespace: x}\nspec: {podSelector: {}}\n"), "x.yaml"); err != nil {
		t.Fatal(err)
	}
	expect("what the API put is told by the API")
}
