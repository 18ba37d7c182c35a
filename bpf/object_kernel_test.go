package bpf_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/testutils"
)

// templateWords lists the defaults that a template carries.
var templateWords = map[string]int{
	"weir_endpoint_id": 4, "weir_identity": 4, "weir_ifindex": 4, "weir_ipv4": 4, "weir_ipv6": 16, "weir_mac": 6, "weir_node_mac": 6,
}

// A constant with a zero word could end up in .bss, where it cannot be
// substituted (seed: internals, "Things that surprised me").
func TestEveryConstantIsNonZeroInEveryWord(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	for shape := range shapes {
		object, err := objects[shape]()
		if err != nil {
			t.Fatal(err)
		}
		file, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{".bss", ".data", ".rodata"} {
			if s := file.Section(name); s != nil && s.Size > 0 {
				t.Errorf("%s: section %s has %d bytes; constants belong in .rodata.config", shape, name, s.Size)
			}
		}
		config := file.Section(".rodata.config")
		if config == nil {
			t.Fatalf("%s: no section .rodata.config", shape)
		}
		data, err := config.Data()
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := file.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string][]byte{}
		for _, s := range symbols {
			if _, ok := templateWords[s.Name]; ok && file.Sections[s.Section] == config {
				found[s.Name] = data[s.Value : s.Value+s.Size]
			}
		}
		for name, size := range templateWords {
			value := found[name]
			if len(value) != size {
				t.Errorf("%s: %s has %d bytes, want %d", shape, name, len(value), size)
				continue
			}
			for at := 0; at < len(value); at += 4 {
				word := make([]byte, 4)
				copy(word, value[at:])
				if binary.NativeEndian.Uint32(word) == 0 {
					t.Errorf("%s: %s is zero in the word at %d", shape, name, at)
				}
			}
		}
		if !bytes.Equal(found["weir_ipv4"], []byte{192, 0, 2, 3}) || binary.NativeEndian.Uint32(found["weir_identity"]) != 2 ||
			binary.NativeEndian.Uint32(found["weir_endpoint_id"]) != 65535 || found["weir_mac"][0]&3 != 2 ||
			!netip.MustParsePrefix("2001:db8::/32").Contains(netip.AddrFrom16([16]byte(found["weir_ipv6"]))) {
			t.Errorf("%s: the template is not harmless: %x", shape, found)
		}
	}
}

func TestTheVerifierAcceptsEveryShape(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	for shape := range shapes {
		coll, err := ebpf.NewCollection(objectOf(t, shape))
		if err != nil {
			t.Errorf("%s: %v", shape, err)
			continue
		}
		for name, p := range coll.Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			verified, _ := info.VerifiedInstructions()
			translated, _ := info.TranslatedSize()
			t.Logf("%-6s %-20s %6d verified, %5d bytes translated", shape, name, verified, translated)
			if verified > 50000 {
				t.Errorf("%s: %s takes %d verified instructions, the limit is 50000", shape, name, verified)
			}
		}
		coll.Close()
	}
}

func TestAFamilyThatIsOffIsDropped(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	for shape, f := range map[string]family{"IPv4": v4, "IPv6": v6} {
		n := newNode(t, shape)
		a := n.add(10, 1001, 0, "10.0.0.1", "fd00::1")
		n.fill(slotAllow, defaults(false, 101)...)
		n.apply(a, slotAllow, 1)
		for _, g := range []family{v4, v6} {
			frame := between(a, a.addr(g), outside(g)).udp(1, 2, "x").frame(t)
			back := between(nil, outside(g), a.addr(g)).udp(2, 1, "x").frame(t)
			act, want := uint32(actOK), drop.Forwarded
			if f != g {
				act, want = actShot, drop.UnknownL3
			}
			for _, r := range []result{n.from(a, frame), n.to(a, back)} {
				if r.act != act || r.dropped() != want {
					t.Errorf("shape %s, packet %s: verdict %d, %s", shape, g, r.act, r.dropped())
				}
			}
		}
	}
}

// The template itself, should it ever be attached, lets nothing pass.
func TestTheTemplateIsHarmless(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, _, b := openPair(t)
	template := &endpoint{
		id: 65535, identity: 2, ifindex: 1<<32 - 1, v4: mustAddr("192.0.2.3"), v6: mustAddr("2001:db8:1111:2222:3333:4444:5555:6666"),
		mac: [6]byte{2, 0, 0x5e, 0, 0x53, 1}, nodeMAC: [6]byte{2, 0, 0x5e, 0, 0x53, 2},
	}
	n.entries(template)
	both(t, func(t *testing.T, f family) {
		if r := n.from(template, between(template, template.addr(f), b.addr(f)).tcp(1, 2, "S").frame(t)); r.act != actShot || r.dropped() != drop.NoConfig {
			t.Errorf("from: verdict %d, %s", r.act, r.dropped())
		}
		if r := n.to(template, between(nil, b.addr(f), template.addr(f)).tcp(1, 2, "S").frame(t)); r.act != actShot || r.dropped() != drop.NoConfig {
			t.Errorf("to: verdict %d, %s", r.act, r.dropped())
		}
	})
}

func TestAMissingBodyIsACountedDrop(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	for slot := range uint32(2) {
		if err := n.coll.Maps["weir_calls"].Delete(slot); err != nil {
			t.Fatal(err)
		}
	}
	r := n.from(a, between(a, a.v4, b.v4).tcp(1, 2, "S").frame(t))
	expect(t, r, actShot, told{eventDrop, egress, drop.MissedTailCall, a.id, 0})
	if len(r.events) == 1 && (r.events[0].SrcIdentity != 1001 || r.events[0].Length == 0) {
		t.Errorf("event %+v", r.events[0])
	}
	expect(t, n.to(b, between(nil, outside(v4), b.v4).tcp(1, 2, "S").frame(t)), actShot, told{eventDrop, ingress, drop.MissedTailCall, b.id, 0})
	if n.counted(drop.MissedTailCall, egress) != 1 || n.counted(drop.MissedTailCall, ingress) != 1 {
		t.Error("the drops are not counted")
	}
}

func TestAFullRingIsCounted(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	const record = 8 + 88
	const rounds = 2000 // two events each, more than the ring holds
	for i := range rounds {
		opts := ebpf.RunOptions{Data: between(a, a.v4, b.v4).udp(uint16(i), 53, "q").frame(t)}
		if act, err := a.from.Run(&opts); err != nil || act != actRedirect {
			t.Fatalf("a full ring changes the verdict: %d, %v", act, err)
		}
	}
	kept := uint64(len(n.drain()))
	lost := n.counted(drop.EventLost, egress) + n.counted(drop.EventLost, ingress)
	if kept+lost != 2*rounds || lost == 0 || kept > ringSize/record {
		t.Errorf("kept %d events, lost %d, want %d together", kept, lost, 2*rounds)
	}
}

func TestEveryPacketIsCountedOnce(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("clang-19"))
	n, a, b := openPair(t)
	n.apply(b, slotDeny, 2)
	frames := [][]byte{
		between(a, a.v4, b.v4).tcp(1, 2, "S").frame(t),                            // policy, counted under ingress
		between(a, b.v4, a.v4).tcp(1, 2, "S").frame(t),                            // source
		between(a, a.v4, outside(v4)).tcp(1, 2, "S").frame(t),                     // forwarded
		arp(broadcast, a.mac, 1, a.mac, a.v4, [6]byte{}, gateway4),                // answered
		nd(between(a, linkLocal, mustAddr("ff02::2")), 133, 0, gateway6).frame(t), // not worth an answer
		nd(between(a, a.v6, mustAddr("ff02::1:ff00:2")), 135, 0, b.v6).frame(t),
	}
	for _, f := range frames {
		n.from(a, f)
	}
	var sum uint64
	for reason := range 255 {
		sum += n.counted(drop.Reason(reason), egress) + n.counted(drop.Reason(reason), ingress)
	}
	if sum != uint64(len(frames)) {
		t.Errorf("%d packets counted, want %d", sum, len(frames))
	}
	if n.counted(drop.Policy, ingress) != 1 || n.counted(drop.InvalidSource, egress) != 1 || n.counted(drop.Forwarded, egress) != 3 || n.counted(drop.ND, egress) != 1 {
		t.Error("counted under the wrong reason")
	}
}
