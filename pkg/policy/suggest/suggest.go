package suggest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Options say how policies are written.
type Options struct {
	// Kind is the kind of all policies: NetworkPolicy or CiliumNetworkPolicy.
	// Empty: NetworkPolicy, unless it cannot say what the other can.
	Kind string
	// MaxAddresses is the most addresses outside that pods are allowed one by
	// one on the same ports; where there are more, all outside is. 0: 32.
	MaxAddresses int
}

// Result is what From suggests.
type Result struct {
	Objects []k8s.Object
	Notes   []string // what is allowed more widely than it was recorded, and what was left out
}

// From suggests policies for the pods that the events judge.
func From(events []gen.Event, o Options) (Result, error) {
	switch o.Kind {
	case "", k8s.KindNetworkPolicy, api.KindNamespaced:
	default:
		return Result{}, fmt.Errorf("kind %q cannot be suggested; give %s or %s", o.Kind, k8s.KindNetworkPolicy, api.KindNamespaced)
	}
	o.MaxAddresses = cmp.Or(o.MaxAddresses, 32)
	r, err := read(events)
	if err != nil {
		return Result{}, fmt.Errorf("reading flows: %w", err)
	}
	m := &maker{recorded: r, opts: o, names: map[string]bool{}, noted: map[string]bool{}}
	for _, key := range slices.Sorted(maps.Keys(r.judged)) {
		if err := m.policy(r.groups[key]); err != nil {
			return Result{}, err
		}
	}
	for _, o := range m.result.Objects {
		if _, err := k8s.Translate(o, k8s.Options{ClusterName: r.cluster}); err != nil {
			return Result{}, fmt.Errorf("the flows lead to a policy that is not valid: %w", err)
		}
	}
	if r.audited > 0 {
		m.note("%d events tell of what passed in audit mode alone, against the policies in force then; unless another end denied it, it is allowed", r.audited)
	}
	if r.skipped > 0 {
		m.note("%d events tell of no verdict, or of port 0, which no policy can name, and were left out", r.skipped)
	}
	return m.result, nil
}

// maker makes the policies.
type maker struct {
	*recorded
	opts   Options
	names  map[string]bool // taken, with the namespace
	result Result
	noted  map[string]bool
}

func (m *maker) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !m.noted[text] {
		m.noted[text] = true
		m.result.Notes = append(m.result.Notes, text)
	}
}

// rule is peers with the ports that all of them may use; no ports is every port.
type rule struct {
	peers []end
	world []string // families of addresses outside that are allowed as a whole
	ports []port
}

// policy makes the policy of one group of pods.
func (m *maker) policy(g group) error {
	s := subject{group: g, name: m.name(g), judged: m.judged[g.key()]}
	for _, f := range m.flows {
		if s.judged[types.Egress] && f.from.isPod() && f.from.group().key() == g.key() {
			s.egress = append(s.egress, f)
		}
		// The local node may always reach its pods.
		if s.judged[types.Ingress] && f.to.isPod() && f.to.group().key() == g.key() && f.from.entity != labels.NameHost {
			s.ingress = append(s.ingress, f)
		}
	}
	in, out := m.rules(s, types.Ingress), m.rules(s, types.Egress)
	kind := cmp.Or(m.opts.Kind, k8s.KindNetworkPolicy)
	if m.opts.Kind == "" && (m.needsCilium(in) || m.needsCilium(out)) {
		kind = api.KindNamespaced
	}
	var v any
	if kind == k8s.KindNetworkPolicy {
		v = m.networkPolicy(s, in, out)
	} else {
		v = m.ciliumPolicy(s, in, out)
	}
	obj, err := k8s.NewObject(v)
	if err != nil {
		return fmt.Errorf("suggesting a policy for %s: %w", s.name, err)
	}
	m.result.Objects = append(m.result.Objects, obj)
	return nil
}

// subject is the pods that a policy is for.
type subject struct {
	group
	name            string
	judged          map[types.Direction]bool
	ingress, egress []flow
}

// name makes a name of the labels that people know an application by.
func (m *maker) name(g group) string {
	base := "pods"
	for _, k := range append([]string{"app.kubernetes.io/name", "app", "k8s-app", "name"}, slices.Sorted(maps.Keys(g.labels))...) {
		if v := clean(g.labels[k]); v != "" {
			base = v
			break
		}
	}
	name := "suggested-" + base
	for i := 2; m.names[g.namespace+"/"+name]; i++ {
		name = fmt.Sprintf("suggested-%s-%d", base, i)
	}
	m.names[g.namespace+"/"+name] = true
	return name
}

// clean turns a label's value into a part of an object's name.
func clean(v string) string {
	v = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(v))
	return strings.Trim(v, "-")
}

// rules joins the flows of a direction: peers with the same ports are one rule.
func (m *maker) rules(s subject, dir types.Direction) []rule {
	flows := s.egress
	if dir == types.Ingress {
		flows = s.ingress
	}
	peers, ports := map[string]end{}, map[string]map[port]bool{}
	for _, f := range flows {
		peer := f.to
		if dir == types.Ingress {
			peer = f.from
		}
		key := m.peerKey(peer)
		peers[key] = peer
		if ports[key] == nil {
			ports[key] = map[port]bool{}
		}
		if m.unsayable(f.port) {
			m.note("%s of %s/%s with %s: %s has no ports to allow alone, so every port is allowed", dir, s.namespace, s.name, describe(peer), f.port.proto)
		}
		ports[key][f.port] = true
	}
	byPorts := map[string]*rule{}
	for _, key := range slices.Sorted(maps.Keys(peers)) {
		list := slices.SortedFunc(maps.Keys(ports[key]), func(a, b port) int {
			return cmp.Or(cmp.Compare(a.proto, b.proto), cmp.Compare(a.number, b.number))
		})
		if slices.ContainsFunc(list, func(p port) bool { return m.unsayable(p) }) {
			list = nil
		}
		id := fmt.Sprint(list)
		if byPorts[id] == nil {
			byPorts[id] = &rule{ports: list}
		}
		byPorts[id].peers = append(byPorts[id].peers, peers[key])
	}
	var out []rule
	for _, id := range slices.Sorted(maps.Keys(byPorts)) {
		out = append(out, m.widen(*byPorts[id], s, dir))
	}
	return out
}

// widen allows the whole outside where single addresses are too many.
func (m *maker) widen(r rule, s subject, dir types.Direction) rule {
	for _, is4 := range []bool{true, false} {
		this := func(e end) bool { return e.outside() && e.addr.Is4() == is4 }
		n := 0
		for _, p := range r.peers {
			if this(p) {
				n++
			}
		}
		if n <= m.opts.MaxAddresses {
			continue
		}
		r.peers = slices.DeleteFunc(r.peers, this)
		family := labels.NameWorldIPv4
		if !is4 {
			family = labels.NameWorldIPv6
		}
		r.world = append(r.world, family)
		m.note("%s of %s/%s: %d addresses outside are too many to list, so all of %s is allowed", dir, s.namespace, s.name, n, family)
	}
	return r
}

// peerKey is equal for ends that one peer of a policy stands for.
func (m *maker) peerKey(e end) string {
	switch {
	case e.isPod():
		return "pod " + e.group().key() + " " + e.cluster
	case e.entity != "" && m.opts.Kind != k8s.KindNetworkPolicy:
		return "entity " + e.entity
	}
	return "address " + e.addr.String()
}

// unsayable reports whether no policy of the kind can allow such packets alone.
func (m *maker) unsayable(p port) bool {
	return !p.proto.HasPorts() && (!p.proto.IsICMP() || m.opts.Kind == k8s.KindNetworkPolicy)
}

// needsCilium reports whether a NetworkPolicy could only say a rule more widely.
func (m *maker) needsCilium(rules []rule) bool {
	for _, r := range rules {
		if len(r.world) > 0 || slices.ContainsFunc(r.ports, func(p port) bool { return p.proto.IsICMP() }) {
			return true
		}
		for _, p := range r.peers {
			if p.entity != "" || p.isPod() && p.cluster != m.cluster {
				return true
			}
		}
	}
	return false
}

func describe(e end) string {
	switch {
	case e.isPod():
		parts := []string{}
		for _, k := range slices.Sorted(maps.Keys(e.labels)) {
			parts = append(parts, k+"="+e.labels[k])
		}
		return "pods " + strings.Join(parts, ",") + " of " + e.namespace
	case e.entity != "":
		return e.entity
	}
	return e.addr.String()
}

// besides lists keys of which every larger group of the namespace has one: a
// selector for the group leaves them out, so that it selects no other group.
func (m *maker) besides(g group) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m.groups)) {
		o := m.groups[key]
		if o.namespace != g.namespace || len(o.labels) <= len(g.labels) {
			continue
		}
		larger := true
		for k, v := range g.labels {
			if w, ok := o.labels[k]; !ok || w != v {
				larger = false
			}
		}
		if !larger || slices.ContainsFunc(out, func(k string) bool { _, has := o.labels[k]; return has }) {
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(o.labels)) {
			if _, has := g.labels[k]; !has {
				out = append(out, k)
				break
			}
		}
	}
	return out
}
