package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/weirnet/weir/cli/probe"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
	"github.com/weirnet/weir/test/cases"
)

// The 60 single-step cases of the NetworkPolicy suites with the lowest
// sha256(id), every cell by a real packet: TCP and UDP by an echo, SCTP by its
// INIT, which is also counted at the receiver. A denied cell needs the event of
// each direction that the letter names.
func TestSampledCasesByLivePackets(t *testing.T) {
	env := testutils.Kernel(t)
	set, err := cases.Load()
	if err != nil {
		t.Fatal(err)
	}
	byWorld := map[string][]casefile.Case{}
	for _, c := range set.Sample(60, cases.SuiteCyclonus, cases.SuiteGenNP) {
		byWorld[c.World] = append(byWorld[c.World], c)
	}
	cells, played := 0, 0
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(byWorld)) {
		w := startWorld(t, env, name, set.Worlds[name])
		for _, c := range byWorld[name] {
			n, wrong := w.play(c)
			cells, played = cells+n, played+1
			if len(wrong) > 0 {
				failed = append(failed, c.ID)
				t.Errorf("%s (%s): %d of %d cells: %s", c.ID, c.Title, len(wrong), n, strings.Join(wrong[:min(5, len(wrong))], "; "))
			}
		}
		w.Close()
	}
	t.Logf("%d cases, %d cells, %d cases fail: %v", played, cells, len(failed), failed)
	if played != 60 {
		t.Errorf("%d cases were played, want 60", played)
	}
}

// liveWorld is a world of cases as a running node.
type liveWorld struct {
	*box.Box
	t       *testing.T
	data    *casefile.WorldData
	sources map[string]lab.Source // by the names of the tables
	inits   *initCounter
}

func startWorld(t *testing.T, env *testutils.Env, name string, data *casefile.WorldData) *liveWorld {
	t.Helper()
	var ports []lab.Port
	for _, p := range data.Probes {
		ports = append(ports, lab.Port{Proto: p.Proto, Port: p.Port})
	}
	o := box.Options{BPFRoot: env.BPFRoot + "/" + name, Files: map[string]string{"world.yaml": worldYAML(t, data)}, IPv4: "10.42.0.0/16", IPv6: "none"}
	if netip.MustParseAddr(data.Pods[0].IP).Is6() {
		o.IPv4, o.IPv6 = "none", "fd00:42::/48"
	}
	for _, x := range data.Externals {
		o.Hosts = append(o.Hosts, lab.Host{Name: x.Name, Addresses: []netip.Addr{netip.MustParseAddr(x.IP)}})
	}
	w := &liveWorld{Box: box.Start(t, o), t: t, data: data, sources: map[string]lab.Source{}, inits: &initCounter{seen: map[lab.Flow]int{}}}
	for _, p := range data.Pods {
		want := netip.MustParseAddr(p.IP)
		a := w.Add(lab.Pod{Namespace: p.Namespace, Name: p.Name, IPs: []netip.Addr{want}, Ports: ports})
		if !slices.Equal(a.Addresses, []netip.Addr{want}) {
			t.Fatalf("pod %s asked for %s and got %v", p.ID(), want, a.Addresses)
		}
		w.sources[p.ID()] = lab.Source{Name: p.ID(), Netns: a.Netns, Addrs: a.Addresses}
	}
	for _, h := range w.Record.Hosts {
		w.Serve(h.Netns, ports...)
		w.sources["ext/"+h.Name] = lab.Source{Name: "ext/" + h.Name, Netns: h.Netns, Addrs: h.Addresses}
	}
	for _, s := range w.sources {
		w.inits.listen(t, s)
	}
	return w
}

// worldYAML is a world's namespaces and pods as objects.
func worldYAML(t *testing.T, data *casefile.WorldData) string {
	t.Helper()
	var out strings.Builder
	object := func(kind string, meta, spec map[string]any) {
		text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s\n", text)
	}
	for name, labels := range data.Namespaces {
		object("Namespace", map[string]any{"name": name, "labels": labels}, nil)
	}
	for _, p := range data.Pods {
		var ports []map[string]any
		for _, port := range p.Ports {
			one := map[string]any{"containerPort": port.Port, "protocol": port.Proto}
			if port.Name != "" {
				one["name"] = port.Name
			}
			ports = append(ports, one)
		}
		object("Pod", map[string]any{"name": p.Name, "namespace": p.Namespace, "labels": p.Labels},
			map[string]any{"serviceAccountName": "default", "containers": []map[string]any{{"name": "c", "image": "i", "ports": ports}}})
	}
	return out.String()
}

// play puts a case's policies in force, compares every cell and takes the
// policies away again.
func (w *liveWorld) play(c casefile.Case) (asked int, wrong []string) {
	w.t.Helper()
	var text strings.Builder
	objects := 0
	for _, op := range c.Steps[0].Do {
		if op.Apply == nil {
			w.t.Fatalf("case %s does more than apply objects", c.ID)
		}
		fmt.Fprintf(&text, "---\n%s\n", op.Apply)
		objects++
	}
	w.Write("case.yaml", text.String())
	w.InForce(objects)
	defer func() {
		w.Remove("case.yaml")
		w.InForce(0)
	}()
	list := c.Steps[0].Cells(w.data.Probes)
	results := make([]lab.Result, len(list))
	for i, cell := range list {
		from, to := w.sources[cell.From], w.sources[cell.To]
		results[i] = lab.Result{From: from, Flow: lab.Flow{
			Proto: cell.Probe.Proto, Src: netip.AddrPortFrom(from.Addrs[0], 0), Dst: netip.AddrPortFrom(to.Addrs[0], cell.Probe.Port)}}
	}
	denials, err := probe.Send(w.t.Context(), w.Agent, results, lab.ProbeOptions{Timeout: time.Second, Parallel: 96})
	if err != nil {
		w.t.Fatal(err)
	}
	for i, cell := range list {
		r := results[i]
		if got := lab.Letter(r, denials[r.Flow]); got != string(cell.Want) {
			wrong = append(wrong, fmt.Sprintf("%s: want %c, got %s (%v)", cell, cell.Want, got, r.Err))
		}
		if n := w.inits.of(r.Flow); cell.Probe.Proto == types.ProtoSCTP && (n > 0) != (cell.Want == simulate.Allowed) {
			wrong = append(wrong, fmt.Sprintf("%s: want %c, the receiver saw %d INITs", cell, cell.Want, n))
		}
	}
	return len(list), wrong
}

// initCounter counts the SCTP INITs that arrive at pods and hosts.
type initCounter struct {
	mu   sync.Mutex
	seen map[lab.Flow]int
}

func (c *initCounter) of(f lab.Flow) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[f]
}

// listen counts what arrives at a source's own address until the test ends.
func (c *initCounter) listen(t *testing.T, s lab.Source) {
	t.Helper()
	network := "ip4:132"
	if s.Addrs[0].Is6() {
		network = "ip6:132"
	}
	var conn *net.IPConn
	err := s.Netns.Do(func() (err error) {
		conn, err = net.ListenIP(network, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetReadBuffer(4 << 20)
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromIP(buf)
			if err != nil {
				return
			}
			var h layers.SCTP
			if h.DecodeFromBytes(buf[:n], gopacket.NilDecodeFeedback) != nil || len(h.Payload) == 0 || layers.SCTPChunkType(h.Payload[0]) != layers.SCTPChunkTypeInit {
				continue
			}
			src, _ := netip.AddrFromSlice(from.IP)
			c.mu.Lock()
			c.seen[lab.Flow{Proto: types.ProtoSCTP, Src: netip.AddrPortFrom(src.Unmap(), uint16(h.SrcPort)), Dst: netip.AddrPortFrom(s.Addrs[0], uint16(h.DstPort))}]++
			c.mu.Unlock()
		}
	}()
}
