package suggest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// end is one end of a flow, as far as a policy can speak of it.
type end struct {
	namespace string            // empty: no pod
	cluster   string            // of a pod; empty: none
	labels    map[string]string // of a pod, those that its author gave
	entity    string            // of what is neither a pod nor outside
	addr      netip.Addr        // of what is no pod
}

// group is a set of pods that policies cannot tell apart.
type group struct {
	namespace string
	labels    map[string]string
}

// key names the group.
func (g group) key() string {
	parts := []string{g.namespace}
	for _, k := range slices.Sorted(maps.Keys(g.labels)) {
		parts = append(parts, k+"="+g.labels[k])
	}
	return strings.Join(parts, "\x00")
}

func (e end) isPod() bool  { return e.namespace != "" }
func (e end) group() group { return group{e.namespace, e.labels} }

// key names everything that a policy can tell of the end.
func (e end) key() string {
	if e.isPod() {
		return fmt.Sprintf("pod %q %q", e.group().key(), e.cluster)
	}
	return fmt.Sprintf("address %s %s", e.addr, e.entity)
}

// outside reports whether the end is an address of nobody in the cluster.
func (e end) outside() bool { return !e.isPod() && e.entity == "" }

// flow is what a rule would have to allow.
type flow struct {
	from, to end
	port     port
}

// port is a destination port of a protocol, of ICMP a type; of other protocols
// there is no number.
type port struct {
	proto  wtypes.Proto
	number uint16
}

// tuple is a flow as the packets show it.
type tuple struct {
	src, dst     string
	sport, dport uint16
	proto        string
	kind         uint8 // of ICMP
}

func (f flow) key() string {
	return fmt.Sprintf("%s > %s %s %d", f.from.key(), f.to.key(), f.port.proto, f.port.number)
}

// recorded is what events say.
type recorded struct {
	flows   []flow                              // that passed, each once
	judged  map[string]map[types.Direction]bool // by group, where an event judged it
	groups  map[string]group                    // all that were seen, as subject or peer
	cluster string                              // of the pods judged
	skipped int                                 // events that are no verdicts, or of port 0
	audited int                                 // events of what passed because its endpoint only audits
}

// read takes the events apart.
func read(events []gen.Event) (*recorded, error) {
	r := &recorded{judged: map[string]map[types.Direction]bool{}, groups: map[string]group{}}
	passed, denied := map[tuple]flow{}, map[tuple]bool{}
	for i, e := range events {
		if !tells(e) {
			r.skipped++
			continue
		}
		f, err := flowOf(e)
		if err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
		if f.port.number == 0 && f.port.proto.HasPorts() {
			r.skipped++
			continue
		}
		t := tuple{e.Source.IP, e.Destination.IP, e.Source.Port, e.Destination.Port, e.Proto, e.IcmpType}
		subject, dir := f.from, types.Egress
		if e.Direction == gen.DirectionIngress {
			subject, dir = f.to, types.Ingress
		}
		if byPolicy(e) {
			if subject.isPod() {
				r.judge(subject, dir)
			}
			audited := e.Type == gen.EventAudit // a policy denied it, and it passed
			if e.Verdict == gen.VerdictDeny && !audited {
				denied[t] = true
			} else {
				if audited {
					r.audited++
				}
				passed[t] = f
			}
		}
		for _, end := range []end{f.from, f.to} {
			if end.isPod() {
				r.groups[end.group().key()] = end.group()
			}
		}
	}
	seen := map[string]bool{}
	for t, f := range passed {
		if key := f.key(); !denied[t] && !seen[key] {
			seen[key] = true
			r.flows = append(r.flows, f)
		}
	}
	slices.SortFunc(r.flows, func(a, b flow) int { return strings.Compare(a.key(), b.key()) })
	return r, nil
}

// tells reports whether an event says what became of a packet, and where.
func tells(e gen.Event) bool {
	return slices.Contains([]gen.EventType{gen.EventVerdict, gen.EventDrop, gen.EventAudit}, e.Type) && e.Proto != "" &&
		slices.Contains([]gen.Direction{gen.DirectionIngress, gen.DirectionEgress}, e.Direction) &&
		slices.Contains([]gen.Verdict{gen.VerdictAllow, gen.VerdictDeny}, e.Verdict)
}

// byPolicy reports whether an event is the verdict of a policy: not every drop is.
func byPolicy(e gen.Event) bool {
	return e.Type == gen.EventVerdict || e.Type == gen.EventAudit || e.Reason == drop.Policy.String() || e.Reason == drop.PolicyDeny.String()
}

func (r *recorded) judge(e end, d types.Direction) {
	key := e.group().key()
	if r.judged[key] == nil {
		r.judged[key] = map[types.Direction]bool{}
	}
	r.judged[key][d] = true
	if r.cluster == "" {
		r.cluster = e.cluster
	}
}

func flowOf(e gen.Event) (flow, error) {
	from, err := endOf(e.Source)
	if err != nil {
		return flow{}, fmt.Errorf("source: %w", err)
	}
	to, err := endOf(e.Destination)
	if err != nil {
		return flow{}, fmt.Errorf("destination: %w", err)
	}
	proto, err := wtypes.ParseProto(e.Proto)
	if err != nil {
		return flow{}, fmt.Errorf("proto: %w", err)
	}
	f := flow{from: from, to: to, port: port{proto: proto}}
	switch {
	case proto.HasPorts():
		f.port.number = e.Destination.Port
	case proto.IsICMP():
		f.port.number = uint16(e.IcmpType)
	}
	return f, nil
}

// endOf reads an end's labels. Labels that Weir derives are left out of what a
// selector asks for; the namespace is asked for by itself.
func endOf(p gen.EventPeer) (end, error) {
	a, err := labels.ParseArray(p.Labels...)
	if err != nil {
		return end{}, err
	}
	if ns, _ := a.Get(labels.SourceK8s, labels.KeyPodNamespace); ns != "" {
		e := end{namespace: ns, labels: map[string]string{}}
		e.cluster, _ = a.Get(labels.SourceK8s, labels.KeyCluster)
		for _, l := range a {
			if l.Source == labels.SourceK8s && l.Key != labels.KeyPodNamespace && !strings.HasPrefix(l.Key, "io.cilium.k8s") {
				e.labels[l.Key] = l.Value
			}
		}
		return e, nil
	}
	addr, err := netip.ParseAddr(p.IP)
	if err != nil {
		return end{}, fmt.Errorf("%q is no address, and the labels %v are no pod's", p.IP, p.Labels)
	}
	e := end{addr: addr.Unmap()}
	for _, name := range entities {
		if a.HasReserved(name) {
			e.entity = name
			break
		}
	}
	return e, nil
}

// entities are the labels of what is no pod and not outside, the narrower first.
var entities = []string{
	labels.NameKubeAPIServer, labels.NameHost, labels.NameRemoteNode, labels.NameHealth, labels.NameIngress,
	labels.NameInit, labels.NameUnmanaged,
}
