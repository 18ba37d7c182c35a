package casefile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/types"
)

// World is the state that steps change. It is not safe for concurrent use.
type World struct {
	Cluster    string                       // name of the cluster, a label of every pod
	Namespaces map[string]map[string]string // name to labels
	Pods       map[string]Pod               // by Pod.ID
	Externals  []External
	Entities   []string // "host", "remote-node", "kube-apiserver"
	Probes     []Probe

	policies map[string][]*types.Policy // by types.Resource.ID
}

// NewWorld returns a world before any step.
func NewWorld(d *WorldData, cluster string) *World {
	w := &World{
		Cluster: cluster, Namespaces: map[string]map[string]string{}, Pods: make(map[string]Pod, len(d.Pods)),
		Externals: d.Externals, Entities: d.Entities, Probes: d.Probes, policies: map[string][]*types.Policy{},
	}
	maps.Copy(w.Namespaces, d.Namespaces)
	for _, p := range d.Pods {
		w.Pods[p.ID()] = p
	}
	return w
}

// Apply changes the world by one operation.
func (w *World) Apply(op Op) error {
	switch {
	case op.Apply != nil:
		return w.apply(op.Apply)
	case op.DeletePolicy != nil:
		r := types.Resource{Kind: op.DeletePolicy.Kind, Namespace: op.DeletePolicy.Namespace, Name: op.DeletePolicy.Name}
		if _, ok := w.policies[r.ID()]; !ok {
			return fmt.Errorf("delete %s: there is none", r)
		}
		delete(w.policies, r.ID())
	case op.SetNamespace != nil:
		w.Namespaces[op.SetNamespace.Name] = op.SetNamespace.Labels
	case op.DeleteNamespace != "":
		delete(w.Namespaces, op.DeleteNamespace)
		maps.DeleteFunc(w.Pods, func(_ string, p Pod) bool { return p.Namespace == op.DeleteNamespace })
		maps.DeleteFunc(w.policies, func(_ string, ps []*types.Policy) bool {
			return len(ps) > 0 && ps[0].Resource.Namespace == op.DeleteNamespace
		})
	case op.SetPod != nil:
		w.Pods[op.SetPod.ID()] = *op.SetPod
	case op.DeletePod != "":
		if _, ok := w.Pods[op.DeletePod]; !ok {
			return fmt.Errorf("delete pod %s: there is none", op.DeletePod)
		}
		delete(w.Pods, op.DeletePod)
	default:
		return fmt.Errorf("operation %+v says nothing", op)
	}
	return nil
}

func (w *World) apply(object []byte) error {
	objects, err := k8s.Decode(object, "")
	if err != nil {
		return err
	}
	for _, o := range objects {
		ps, err := k8s.Translate(o, k8s.Options{ClusterName: w.Cluster})
		if err != nil {
			return err
		}
		w.policies[o.ID()] = ps
	}
	return nil
}

// Run applies the operations of a step and checks that the world then holds
// what the step's tables name.
func (w *World) Run(s Step) error {
	for i, op := range s.Do {
		if err := w.Apply(op); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	names := make([]string, 0, len(s.Order))
	for id := range w.Pods {
		names = append(names, id)
	}
	for _, e := range w.Externals {
		names = append(names, "ext/"+e.Name)
	}
	for _, e := range w.Entities {
		names = append(names, "ent/"+e)
	}
	slices.Sort(names)
	if want := slices.Sorted(slices.Values(s.Order)); !slices.Equal(names, want) {
		return fmt.Errorf("the world holds %s, the tables name %s", strings.Join(names, " "), strings.Join(want, " "))
	}
	return nil
}

// Policies returns all policies, sorted by resource.
func (w *World) Policies() []*types.Policy {
	var out []*types.Policy
	for _, id := range slices.Sorted(maps.Keys(w.policies)) {
		out = append(out, w.policies[id]...)
	}
	return out
}
