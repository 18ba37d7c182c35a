package node

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// Where the entities of a world are (RFC 5737); no case names these addresses.
var entityAddrs = map[string]netip.Addr{
	"host": netip.MustParseAddr("192.0.2.1"), "remote-node": netip.MustParseAddr("192.0.2.2"), "kube-apiserver": netip.MustParseAddr("192.0.2.3"),
}

// entityYAML is the objects that say who the entities are. The node knows itself.
const entityYAML = `---
apiVersion: v1
kind: Node
metadata: {name: elsewhere}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.3]}]
`

// fullWorld is a world of cases as a running node, with entities; its steps may
// change pods and namespaces too.
type fullWorld struct {
	*box.Box
	t       *testing.T
	data    *casefile.WorldData
	ports   []lab.Port
	sources map[string]lab.Source // by the names of the tables
	inits   *initCounter
	denials *denialLog
	sport   uint16

	now      *casefile.World
	policies map[string]json.RawMessage // of now, by kind, namespace and name
	attached map[string]casefile.Pod    // what runs
	base     string                     // objects that never change
	written  map[string]string          // files
}

func startFullWorld(t *testing.T, env *testutils.Env, name string, data *casefile.WorldData) *fullWorld {
	t.Helper()
	w := &fullWorld{
		t: t, data: data, sources: map[string]lab.Source{}, inits: &initCounter{seen: map[lab.Flow]int{}}, sport: 20000,
		attached: map[string]casefile.Pod{}, written: map[string]string{},
	}
	for _, p := range data.Probes {
		w.ports = append(w.ports, lab.Port{Proto: p.Proto, Port: p.Port})
	}
	pool := netip.MustParseAddr(data.Pods[0].IP)
	o := box.Options{BPFRoot: env.BPFRoot + "/" + name, IPv4: "none", IPv6: "none"}
	if pool.Is4() {
		o.IPv4 = netip.PrefixFrom(pool, 16).Masked().String()
	} else {
		o.IPv6 = netip.PrefixFrom(pool, 48).Masked().String()
	}
	for _, x := range data.Externals {
		o.Hosts = append(o.Hosts, lab.Host{Name: "ext/" + x.Name, Addresses: []netip.Addr{netip.MustParseAddr(x.IP)}})
	}
	if len(data.Entities) > 0 {
		w.base = entityYAML
	}
	for _, e := range data.Entities {
		if e != "host" {
			o.Hosts = append(o.Hosts, lab.Host{Name: "ent/" + e, Addresses: []netip.Addr{entityAddrs[e]}})
		}
	}
	for i := range o.Hosts { // the name of a host is that of a file
		o.Hosts[i].Name = strings.Replace(o.Hosts[i].Name, "/", "-", 1)
	}
	w.Box = box.Start(t, o)
	for _, h := range w.Record.Hosts {
		w.serve(strings.Replace(h.Name, "-", "/", 1), h.Netns, h.Addresses)
	}
	if slices.Contains(data.Entities, "host") {
		w.serveNode("ent/host", entityAddrs["host"])
	}
	var err error
	if w.denials, err = followDenials(t.Context(), w.Agent); err != nil {
		t.Fatal(err)
	}
	w.reset()
	return w
}

// stop takes the world down.
func (w *fullWorld) stop() {
	w.t.Helper()
	if err := w.denials.end(); err != nil {
		w.t.Error(err)
	}
	w.Close()
}

// serve opens the ports at a source and counts the INITs that come to it.
func (w *fullWorld) serve(name string, ns lab.Netns, addrs []netip.Addr) {
	w.t.Helper()
	w.Serve(ns, w.ports...)
	w.sources[name] = lab.Source{Name: name, Netns: ns, Addrs: addrs}
	w.inits.listen(w.t, w.sources[name])
}

// serveNode gives the node an address and opens the ports at it. The node has
// other addresses too, and what has no connection would answer from one of them.
func (w *fullWorld) serveNode(name string, a netip.Addr) {
	w.t.Helper()
	source := lab.Source{Name: name, Netns: w.Node(), Addrs: []netip.Addr{a}}
	var conns []net.PacketConn
	var tcp []lab.Port
	err := w.Node().Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}); err != nil {
			return err
		}
		for _, p := range w.ports {
			switch p.Proto {
			case types.ProtoTCP:
				tcp = append(tcp, p)
			case types.ProtoUDP:
				c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, p.Port)))
				if err != nil {
					return err
				}
				conns = append(conns, c)
			}
		}
		c, err := net.ListenIP("ip4:132", &net.IPAddr{IP: a.AsSlice()})
		if err != nil {
			return err
		}
		conns = append(conns, c)
		return nil
	})
	for _, c := range conns {
		w.t.Cleanup(func() { c.Close() })
		go w.answer(c)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.Serve(w.Node(), tcp...)
	w.sources[name] = source
	w.inits.listen(w.t, source)
}

// answer sends words back, and an INIT ACK for each INIT to a port that is open.
func (w *fullWorld) answer(c net.PacketConn) {
	_, sctp := c.(*net.IPConn)
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		if !sctp {
			c.WriteTo(buf[:n], from)
			continue
		}
		if n < 16 || buf[12] != sctpINIT {
			continue
		}
		src, dst := binary.BigEndian.Uint16(buf), binary.BigEndian.Uint16(buf[2:])
		if slices.Contains(w.ports, lab.Port{Proto: types.ProtoSCTP, Port: dst}) {
			c.WriteTo(sctpPacket(dst, src, sctpINITACK), from)
		}
	}
}

// reset makes the world as it is before any step.
func (w *fullWorld) reset() {
	w.t.Helper()
	w.now, w.policies = casefile.NewWorld(w.data, "default"), map[string]json.RawMessage{}
	w.realize()
}

// policyKey is the kind, namespace and name of an object.
func policyKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// do applies the operations of a step.
func (w *fullWorld) do(step casefile.Step) error {
	if err := w.now.Run(step); err != nil {
		return err
	}
	for _, op := range step.Do {
		switch {
		case op.Apply != nil:
			var o struct {
				Kind     string
				Metadata struct{ Namespace, Name string }
			}
			if err := json.Unmarshal(op.Apply, &o); err != nil {
				return err
			}
			w.policies[policyKey(o.Kind, o.Metadata.Namespace, o.Metadata.Name)] = op.Apply
		case op.DeletePolicy != nil:
			delete(w.policies, policyKey(op.DeletePolicy.Kind, op.DeletePolicy.Namespace, op.DeletePolicy.Name))
		case op.DeleteNamespace != "":
			maps.DeleteFunc(w.policies, func(key string, _ json.RawMessage) bool { return strings.Split(key, "/")[1] == op.DeleteNamespace })
		}
	}
	w.realize()
	return nil
}

// realize makes the node be what the world is: pods that are gone go first, so
// that their addresses are free; then objects and policies; then new pods.
func (w *fullWorld) realize() {
	w.t.Helper()
	same := func(a, b casefile.Pod) bool { return a.IP == b.IP }
	for id, p := range w.attached {
		if want, ok := w.now.Pods[id]; ok && same(want, p) {
			continue
		}
		if err := w.DelPod(w.t.Context(), id); err != nil {
			w.t.Fatal(err)
		}
		delete(w.attached, id)
		delete(w.sources, id)
	}
	current := *w.data
	current.Namespaces, current.Pods = w.now.Namespaces, nil
	for _, id := range slices.Sorted(maps.Keys(w.now.Pods)) {
		current.Pods = append(current.Pods, w.now.Pods[id])
	}
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(w.policies)) {
		fmt.Fprintf(&text, "---\n%s\n", w.policies[key])
	}
	w.put("world.yaml", worldYAML(w.t, &current)+w.base)
	w.put("case.yaml", text.String())
	w.InForce(len(w.now.Policies()))
	for _, p := range current.Pods {
		if _, there := w.attached[p.ID()]; there {
			continue
		}
		want := netip.MustParseAddr(p.IP)
		a, err := w.AddPod(w.t.Context(), lab.Pod{Namespace: p.Namespace, Name: p.Name, IPs: []netip.Addr{want}})
		if err != nil {
			w.t.Fatal(err)
		}
		if !slices.Equal(a.Addresses, []netip.Addr{want}) {
			w.t.Fatalf("pod %s asked for %s and got %v", p.ID(), want, a.Addresses)
		}
		w.attached[p.ID()] = p
		w.serve(p.ID(), a.Netns, a.Addresses)
	}
	w.awaitState()
}

// put writes a file that is not yet so.
func (w *fullWorld) put(name, text string) {
	w.t.Helper()
	if old, there := w.written[name]; !there || old != text {
		w.Write(name, text)
		w.written[name] = text
	}
}

// awaitState waits until the agent knows who and where everybody is, as the world
// has it, and every endpoint holds the policies under that.
func (w *fullWorld) awaitState() {
	w.t.Helper()
	sim, err := w.now.Simulate(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := errors.Join(w.checkEndpoints(sim), w.checkPlaces(sim))
		if err == nil {
			var rev gen.PolicyRevision
			if rev, err = w.Agent.PolicyRevision(w.t.Context()); err == nil && rev.Realized >= rev.Revision {
				return
			}
			err = fmt.Errorf("revisions %+v: %w", rev, err)
		}
		if time.Now().After(end) {
			w.t.Fatal(err)
		}
	}
}

// checkEndpoints compares the endpoints with the pods.
func (w *fullWorld) checkEndpoints(sim *simulate.Cluster) error {
	list, err := w.Agent.Endpoints(w.t.Context(), nil, nil)
	if err != nil || len(list) != len(w.now.Pods) {
		return fmt.Errorf("%d endpoints for %d pods: %w", len(list), len(w.now.Pods), err)
	}
	for _, e := range list {
		ends, _ := sim.Ends(e.Pod.Namespace + "/" + e.Pod.Name)
		if len(ends) != 1 {
			return fmt.Errorf("an endpoint of %+v", e.Pod)
		}
		var want []string
		for _, l := range ends[0].Labels {
			want = append(want, l.String())
		}
		slices.Sort(want)
		if got := slices.Sorted(slices.Values(e.Identity.Labels)); e.State != gen.EndpointReady || !slices.Equal(got, want) {
			return fmt.Errorf("the endpoint of %+v is %s with %v, want %v", e.Pod, e.State, got, want)
		}
	}
	return nil
}

// checkPlaces compares what prefixes and addresses resolve to with what the
// policies name.
func (w *fullWorld) checkPlaces(sim *simulate.Cluster) error {
	identities, err := w.Agent.Identities(w.t.Context(), nil)
	if err != nil {
		return err
	}
	labelsOf := map[uint32][]string{}
	for _, id := range identities {
		labelsOf[id.ID] = id.Labels
	}
	list, err := w.Agent.IPs(w.t.Context(), gen.ListIPsParams{})
	if err != nil {
		return err
	}
	entries := map[netip.Prefix]gen.IPEntry{}
	for _, e := range list {
		p, err := netip.ParsePrefix(e.Prefix)
		if err != nil {
			return err
		}
		entries[p] = e
	}
	for p := range sim.Prefixes {
		if _, known := entries[p]; !known {
			return fmt.Errorf("prefix %s of a policy is not known", p)
		}
	}
	for _, name := range sim.Names() {
		ends, _ := sim.Ends(name)
		if strings.HasPrefix(name, "ent/") || strings.HasPrefix(name, "ext/") {
			continue
		}
		var best netip.Prefix
		for p, pods := range sim.Prefixes {
			if pods && p.Contains(ends[0].Addr) && (!best.IsValid() || p.Bits() > best.Bits()) {
				best = p
			}
		}
		e := entries[netip.PrefixFrom(ends[0].Addr, ends[0].Addr.BitLen())]
		if !best.IsValid() && e.PrefixIdentity != 0 || best.IsValid() && !slices.Contains(labelsOf[e.PrefixIdentity], labels.CIDRLabel(best).String()) {
			return fmt.Errorf("%s is in %s, the agent says %v: %+v", name, best, labelsOf[e.PrefixIdentity], e)
		}
	}
	return nil
}

// play runs a case and compares every cell of every step.
func (w *fullWorld) play(c casefile.Case) (asked int, wrong []string) {
	w.t.Helper()
	for i, step := range c.Steps {
		if err := w.do(step); err != nil {
			return asked, append(wrong, fmt.Sprintf("step %d: %v", i, err))
		}
		list := step.Cells(w.data.Probes)
		asked += len(list)
		for _, bad := range w.ask(list) {
			wrong = append(wrong, fmt.Sprintf("step %d %s", i, bad))
		}
	}
	w.now, w.policies = casefile.NewWorld(w.data, "default"), map[string]json.RawMessage{}
	if len(c.Steps) > 1 {
		w.realize()
	}
	return asked, wrong
}

// ask sends a connection for every cell.
func (w *fullWorld) ask(list []casefile.Cell) (wrong []string) {
	w.t.Helper()
	w.sport++
	sent := make([]*exchange, len(list))
	for i, cell := range list {
		to := w.sources[cell.To]
		sent[i] = &exchange{from: w.sources[cell.From], flow: lab.Flow{Proto: cell.Probe.Proto, Dst: netip.AddrPortFrom(to.Addrs[0], cell.Probe.Port)}}
	}
	if err := sendRows(w.denials, sent, w.sport); err != nil {
		w.t.Fatal(err)
	}
	for i, cell := range list {
		got, arrived := sent[i].letter(), 0
		if cell.Probe.Proto == types.ProtoSCTP {
			arrived = w.inits.of(sent[i].flow)
		}
		if got != cell.Want || cell.Want != simulate.Allowed && arrived > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: want %c, got %c; %d INITs came to the receiver", cell, cell.Want, got, arrived))
		}
	}
	return wrong
}

// chosen are the cases that an environment variable names, for one look at one case.
func chosen(id string) bool {
	only := os.Getenv("LIVE_CASES")
	return only == "" || slices.Contains(strings.Split(only, ","), id)
}
