package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/weirnet/weir/pkg/drop"
)

// Verdicts of a tc program.
const (
	actOK       = 0
	actShot     = 2
	actRedirect = 7
)

const (
	ingress = 0
	egress  = 1
)

var shapes = map[string]string{
	"IPv4":  "#define ENABLE_IPV4 1\n",
	"IPv6":  "#define ENABLE_IPV6 1\n",
	"both":  "#define ENABLE_IPV4 1\n#define ENABLE_IPV6 1\n",
	"debug": "#define ENABLE_IPV4 1\n#define ENABLE_IPV6 1\n#define DEBUG 1\n",
}

// objects holds a compiled object by shape, made once and only if asked for.
var objects = map[string]func() ([]byte, error){}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weir-bpf-")
	if err != nil {
		panic(err)
	}
	for name, header := range shapes {
		objects[name] = sync.OnceValues(func() ([]byte, error) { return compile(filepath.Join(dir, name), header) })
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func compile(dir, header string) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "shape.h"), []byte(header), 0o644); err != nil {
		return nil, err
	}
	object := filepath.Join(dir, "bpf_lxc.o")
	args := strings.Fields("-O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -I.")
	args = append(args, "-I"+dir, "-I/usr/include/x86_64-linux-gnu", "-I/usr/include/aarch64-linux-gnu", "-c", "bpf_lxc.c", "-o", object)
	if out, err := exec.Command("clang-19", args...).CombinedOutput(); err != nil {
		return nil, errors.New(string(out))
	}
	return os.ReadFile(object)
}

func objectOf(t testing.TB, shape string) *ebpf.CollectionSpec {
	t.Helper()
	object, err := objects[shape]()
	if err != nil {
		t.Fatalf("compile shape %s: %v", shape, err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps["weir_ct4"].MaxEntries, spec.Maps["weir_ct6"].MaxEntries = 1024, 1024
	spec.Maps["weir_events"].MaxEntries = ringSize
	return spec
}

const ringSize = 1 << 17

// endpoint is a pod of the test.
type endpoint struct {
	id       uint32
	identity uint32
	prefix   uint32
	v4, v6   netip.Addr
	mac      [6]byte
	nodeMAC  [6]byte
	ifindex  uint32

	from, to *ebpf.Program
}

func (e *endpoint) addr(f family) netip.Addr {
	if f == v4 {
		return e.v4
	}
	return e.v6
}

// node holds the maps and bodies of one shape, as on a node with pods.
type node struct {
	t      testing.TB
	spec   *ebpf.CollectionSpec
	coll   *ebpf.Collection
	events *ringbuf.Reader
}

// newNode loads the bodies and fills the program array.
func newNode(t testing.TB, shape string) *node {
	t.Helper()
	n := &node{t: t, spec: objectOf(t, shape)}
	spec := n.spec.Copy()
	delete(spec.Programs, "weir_from_container")
	delete(spec.Programs, "weir_to_container")
	delete(spec.Maps, ".rodata.config")
	spec.Variables = nil
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load the bodies: %+v", err)
	}
	n.coll = coll
	t.Cleanup(coll.Close)
	for slot, name := range []string{"weir_from_body", "weir_to_body"} {
		n.put("weir_calls", uint32(slot), coll.Programs[name])
	}
	if n.events, err = ringbuf.NewReader(coll.Maps["weir_events"]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.events.Close() })
	return n
}

func (n *node) put(name string, key, value any) {
	n.t.Helper()
	if err := n.coll.Maps[name].Put(key, value); err != nil {
		n.t.Fatalf("write %s: %v", name, err)
	}
}

// entries loads the endpoint's entry programs with its constants.
func (n *node) entries(e *endpoint) {
	n.t.Helper()
	spec := n.spec.Copy()
	delete(spec.Programs, "weir_from_body")
	delete(spec.Programs, "weir_to_body")
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		switch name {
		case ".rodata.config":
		case "weir_calls", "weir_metrics", "weir_events":
			shared[name] = n.coll.Maps[name]
		default:
			delete(spec.Maps, name)
		}
	}
	for name, value := range map[string]any{
		"weir_endpoint_id": e.id, "weir_identity": e.identity, "weir_ifindex": e.ifindex,
		"weir_ipv4": e.v4.As4(), "weir_ipv6": e.v6.As16(), "weir_mac": e.mac, "weir_node_mac": e.nodeMAC,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			n.t.Fatalf("set %s: %v", name, err)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		n.t.Fatalf("load the entry programs: %+v", err)
	}
	n.t.Cleanup(coll.Close)
	e.from, e.to = coll.Programs["weir_from_container"], coll.Programs["weir_to_container"]
}

// add makes a pod with its entry programs, exposed under both addresses.
func (n *node) add(id, identity, prefix uint32, a4, a6 string) *endpoint {
	n.t.Helper()
	e := &endpoint{
		id: id, identity: identity, prefix: prefix, ifindex: 100 + id,
		v4: netip.MustParseAddr(a4), v6: netip.MustParseAddr(a6),
		mac: [6]byte{2, 0, 0, 0, 1, byte(id)}, nodeMAC: [6]byte{2, 0, 0, 0, 2, byte(id)},
	}
	n.entries(e)
	n.expose(e)
	return e
}

// expose writes weir_lxc for both addresses.
func (n *node) expose(e *endpoint) {
	n.t.Helper()
	for _, a := range []netip.Addr{e.v4, e.v6} {
		n.put("weir_lxc", lxcKey(a), struct {
			IfIndex, Identity, Prefix uint32
			ID                        uint16
			_                         [2]byte
			MAC                       [6]byte
			_                         [2]byte
			NodeMAC                   [6]byte
			_                         [2]byte
		}{IfIndex: e.ifindex, Identity: e.identity, Prefix: e.prefix, ID: uint16(e.id), MAC: e.mac, NodeMAC: e.nodeMAC})
	}
}

func lxcKey(a netip.Addr) [20]byte {
	var k [20]byte
	copy(k[:16], a.AsSlice())
	k[16] = 2
	if a.Is4() {
		k[16] = 1
	}
	return k
}

// know writes the identities of a prefix, or of a node's address.
func (n *node) know(prefix string, identity, prefixIdentity uint32) {
	n.t.Helper()
	p := netip.MustParsePrefix(prefix)
	var k [24]byte
	binary.NativeEndian.PutUint32(k[:], uint32(32+p.Bits()))
	k[4] = 2
	if p.Addr().Is4() {
		k[4] = 1
	}
	copy(k[8:], p.Addr().AsSlice())
	n.put("weir_ipcache", k, [2]uint32{identity, prefixIdentity})
}

// line is one entry of a policy map.
type line struct {
	identity  uint32
	direction uint8
	proto     uint8
	port      uint16
	bits      uint8
	order     uint64
	rule      uint32
	deny      bool
}

// Orders of the classes of a precedence at the ordinary level.
const (
	orderDefault = uint64(0)
	orderAllow   = uint64(0xffff02) << 32
	orderDeny    = uint64(0xffffff) << 32
)

// fill puts a map of the lines into a policy slot.
func (n *node) fill(slot uint32, lines ...line) {
	n.t.Helper()
	inner, err := ebpf.NewMap(n.spec.Maps["weir_policy"].InnerMap)
	if err != nil {
		n.t.Fatal(err)
	}
	defer inner.Close()
	for _, l := range lines {
		bits := uint32(40)
		if l.proto != 0 {
			bits = 48 + uint32(l.bits)
		}
		var k [12]byte
		binary.NativeEndian.PutUint32(k[0:], bits)
		binary.NativeEndian.PutUint32(k[4:], l.identity)
		k[8], k[9] = l.direction, l.proto
		binary.BigEndian.PutUint16(k[10:], l.port)
		var v [24]byte
		binary.NativeEndian.PutUint64(v[0:], l.order)
		binary.NativeEndian.PutUint32(v[8:], l.rule)
		if l.deny {
			v[14] = 1
		}
		if err := inner.Put(k, v); err != nil {
			n.t.Fatalf("policy line %+v: %v", l, err)
		}
	}
	n.put("weir_policy", slot, inner)
}

// allowAll and denyAll are the default lines of both directions.
func defaults(deny bool, rule uint32) []line {
	return []line{
		{direction: ingress, rule: rule, deny: deny},
		{direction: egress, rule: rule + 1, deny: deny},
	}
}

// apply points the endpoint at a slot under a revision.
func (n *node) apply(e *endpoint, slot, revision uint32) {
	n.t.Helper()
	config := n.config(e)
	config[0] = uint64(revision)<<32 | uint64(slot)
	n.put("weir_epconfig", e.id, config)
}

// config reads the endpoint's entry: policy word, first packet, flags.
func (n *node) config(e *endpoint) [3]uint64 {
	n.t.Helper()
	var c [3]uint64
	if err := n.coll.Maps["weir_epconfig"].Lookup(e.id, &c); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// event is struct event.
type event struct {
	Timestamp                       uint64
	Type, Reason, Direction, Family uint8
	Endpoint                        uint16
	Protocol, TCPFlags              uint8
	SPort, DPort                    [2]byte
	Length                          uint32
	SrcIdentity, DstIdentity        uint32
	SrcPrefix, DstPrefix            uint32
	Rule, Revision, IfIndex, Pad    uint32
	SAddr, DAddr                    [16]byte
}

func (e event) sport() uint16 { return binary.BigEndian.Uint16(e.SPort[:]) }
func (e event) dport() uint16 { return binary.BigEndian.Uint16(e.DPort[:]) }

const (
	eventDrop    = 1
	eventVerdict = 2
)

// told is what a test compares of an event.
type told struct {
	kind, direction uint8
	reason          drop.Reason
	endpoint        uint32
	rule            uint32
}

// result is what became of a packet.
type result struct {
	act    uint32
	frame  []byte
	events []event
}

func (r result) told() []told {
	var out []told
	for _, e := range r.events {
		out = append(out, told{e.Type, e.Direction, drop.Reason(e.Reason), uint32(e.Endpoint), e.Rule})
	}
	return out
}

// dropped returns the reason of the drop event, or Forwarded.
func (r result) dropped() drop.Reason {
	for _, e := range r.events {
		if e.Type == eventDrop {
			return drop.Reason(e.Reason)
		}
	}
	return drop.Forwarded
}

func (n *node) run(p *ebpf.Program, frame []byte, device uint32) result {
	n.t.Helper()
	out := make([]byte, len(frame)+256)
	opts := ebpf.RunOptions{Data: frame, DataOut: out, Context: [10]uint32{9: device}} // ingress_ifindex
	act, err := p.Run(&opts)
	if err != nil {
		n.t.Fatalf("run %s: %v", p, err)
	}
	return result{act, opts.DataOut, n.drain()}
}

func (n *node) drain() []event {
	n.t.Helper()
	var events []event
	n.events.SetDeadline(time.Now())
	for {
		record, err := n.events.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return events
		}
		if err != nil {
			n.t.Fatal(err)
		}
		var e event
		if len(record.RawSample) != binary.Size(e) {
			n.t.Fatalf("an event has %d bytes, want %d", len(record.RawSample), binary.Size(e))
		}
		if err := binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e); err != nil {
			n.t.Fatal(err)
		}
		events = append(events, e)
	}
}

// from sends a frame out of the pod, to sends one from the node to the pod.
func (n *node) from(e *endpoint, frame []byte) result {
	n.t.Helper()
	return n.run(e.from, frame, e.ifindex)
}
func (n *node) to(e *endpoint, frame []byte) result { n.t.Helper(); return n.run(e.to, frame, 0) }

// via runs one that came to the node by a device.
func (n *node) via(e *endpoint, device uint32, frame []byte) result {
	n.t.Helper()
	return n.run(e.to, frame, device)
}

// counted reads weir_metrics: packets under a reason and direction.
func (n *node) counted(reason drop.Reason, direction uint32) uint64 {
	n.t.Helper()
	var perCPU [][2]uint64
	if err := n.coll.Maps["weir_metrics"].Lookup(uint32(reason)<<1|direction, &perCPU); err != nil {
		n.t.Fatal(err)
	}
	var sum uint64
	for _, c := range perCPU {
		sum += c[0]
	}
	return sum
}

// flow is struct ct_entry.
type flow struct {
	Packets, Bytes                  uint64
	Expires, Flags                  uint32
	EgressRevision, IngressRevision uint32
	EgressRule, IngressRule         uint32
}

const (
	ctInitiator1  = 1
	ctSeenReply   = 2
	ctClosingInit = 4
	ctClosingResp = 8
	ctEstablished = 16
)

// flows lists the conntrack entries of a family.
func (n *node) flows(f family) []flow {
	n.t.Helper()
	m := n.coll.Maps["weir_ct4"]
	if f == v6 {
		m = n.coll.Maps["weir_ct6"]
	}
	var all []flow
	var e flow
	key := make([]byte, m.KeySize())
	it := m.Iterate()
	for it.Next(&key, &e) {
		all = append(all, e)
	}
	if err := it.Err(); err != nil {
		n.t.Fatal(err)
	}
	return all
}

// forget empties both conntrack maps.
func (n *node) forget() {
	n.t.Helper()
	for _, name := range []string{"weir_ct4", "weir_ct6"} {
		m := n.coll.Maps[name]
		var keys [][]byte
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		for it := m.Iterate(); it.Next(&key, &value); {
			keys = append(keys, bytes.Clone(key))
		}
		for _, k := range keys {
			if err := m.Delete(k); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}
