package casefile

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/simulate"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// entityAddrs are where the nodes of a world are put (RFC 5737). No case names them.
var entityAddrs = map[string]string{
	labels.NameHost: "192.0.2.1", labels.NameRemoteNode: "192.0.2.2", labels.NameKubeAPIServer: "192.0.2.3",
}

// Simulate gives everything in the world its numbers under the policies of now.
func (w *World) Simulate(n *simulate.Numbers) (*simulate.Cluster, error) {
	s := simulate.World{Policies: w.Policies()}
	sketch := simulate.Sketch{Cluster: w.Cluster, Namespaces: w.Namespaces, Filter: labels.DefaultFilter()}
	for _, id := range slices.Sorted(maps.Keys(w.Pods)) {
		p, err := pod(sketch, w.Pods[id])
		if err != nil {
			return nil, err
		}
		s.Pods = append(s.Pods, p)
	}
	for _, name := range w.Entities {
		a, ok := entityAddrs[name]
		if !ok {
			return nil, fmt.Errorf("entity %q is not known; give host, remote-node or kube-apiserver", name)
		}
		who := labels.NewLabelArray(labels.Reserved(name))
		if name == labels.NameKubeAPIServer {
			who = who.With(labels.Reserved(labels.NameRemoteNode))
		}
		s.Hosts = append(s.Hosts, simulate.Host{Name: "ent/" + name, Addrs: []netip.Addr{netip.MustParseAddr(a)}, Labels: who})
	}
	for _, x := range w.Externals {
		a, err := netip.ParseAddr(x.IP)
		if err != nil {
			return nil, fmt.Errorf("external %s: %w", x.Name, err)
		}
		s.Hosts = append(s.Hosts, simulate.Host{Name: "ext/" + x.Name, Addrs: []netip.Addr{a}})
	}
	return simulate.New(s, n)
}

func pod(sketch simulate.Sketch, p Pod) (simulate.Pod, error) {
	a, err := netip.ParseAddr(p.IP)
	if err != nil {
		return simulate.Pod{}, fmt.Errorf("pod %s: %w", p.ID(), err)
	}
	out := simulate.SketchedPod{Namespace: p.Namespace, Name: p.Name, ServiceAccount: "default", Labels: p.Labels, Addrs: []netip.Addr{a}}
	for _, port := range p.Ports {
		proto, err := wtypes.ParseProto(port.Proto)
		if err != nil {
			return simulate.Pod{}, fmt.Errorf("pod %s: %w", p.ID(), err)
		}
		out.Ports = append(out.Ports, simulate.Port{Name: port.Name, Proto: proto, Port: port.Port})
	}
	return sketch.Pod(out), nil
}

// Wrong is a cell with another verdict than wanted.
type Wrong struct {
	Step int // from 0
	Cell
	Got             byte
	Egress, Ingress simulate.Side
}

// String prints "step 0 x/a -> y/b TCP/80: want ., got I (RULE)".
func (w Wrong) String() string {
	s := fmt.Sprintf("step %d %s: want %c, got %c", w.Step, w.Cell, w.Want, w.Got)
	if w.Egress.Judged {
		s += fmt.Sprintf("; egress %s by %s", w.Egress.Verdict, w.Egress.Rule)
	}
	if w.Ingress.Judged {
		s += fmt.Sprintf("; ingress %s by %s", w.Ingress.Verdict, w.Ingress.Rule)
	}
	return s
}

// Ask says what both ends make of a connection.
type Ask func(from, to simulate.End, proto wtypes.Proto, port uint16) (egress, ingress simulate.Side, err error)

// ByMapState asks the map states of a cluster.
func ByMapState(sim *simulate.Cluster) (Ask, error) { return sim.Decide, nil }

// Play runs the steps of a case on a new world, asks by means of the cluster of
// each step, and returns how many cells were asked and which were wrong. An error says that the case could not be played to
// its end, for example because of a policy that Weir refuses.
func (s *Set) Play(c Case, cluster string, by func(*simulate.Cluster) (Ask, error)) (asked int, wrong []Wrong, err error) {
	w := NewWorld(s.Worlds[c.World], cluster)
	numbers := &simulate.Numbers{}
	for i, step := range c.Steps {
		if err := w.Run(step); err != nil {
			return asked, wrong, fmt.Errorf("step %d: %w", i, err)
		}
		sim, err := w.Simulate(numbers)
		if err != nil {
			return asked, wrong, fmt.Errorf("step %d: %w", i, err)
		}
		ask, err := by(sim)
		if err != nil {
			return asked, wrong, fmt.Errorf("step %d: %w", i, err)
		}
		for _, cell := range step.Cells(w.Probes) {
			asked++
			bad, err := judge(sim, cell, ask)
			if err != nil {
				return asked, wrong, fmt.Errorf("step %d %s: %w", i, cell, err)
			}
			if bad.Got != cell.Want {
				bad.Step = i
				wrong = append(wrong, bad)
			}
		}
	}
	return asked, wrong, nil
}

func judge(sim *simulate.Cluster, cell Cell, ask Ask) (Wrong, error) {
	w := Wrong{Cell: cell}
	from, _ := sim.Ends(cell.From)
	to, _ := sim.Ends(cell.To)
	if len(from) == 0 || len(to) == 0 {
		return w, errors.New("there is no such end")
	}
	var err error
	w.Egress, w.Ingress, err = ask(from[0], to[0], cell.Probe.Proto, cell.Probe.Port)
	w.Got = simulate.Letter(w.Egress.Verdict, w.Ingress.Verdict)
	return w, err
}
