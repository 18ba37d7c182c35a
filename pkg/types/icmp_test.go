package types

import "testing"

func TestTheFamiliesNameICMPTypesDifferently(t *testing.T) {
	for _, tt := range []struct {
		proto Proto
		name  string
		kind  int // -1: not known
	}{
		{ProtoICMP, "EchoReply", 0}, {ProtoICMP, "EchoRequest", 8}, {ProtoICMP, "TimeExceeded", 11}, {ProtoICMP, "Timestamp", 13},
		{ProtoICMPv6, "EchoRequest", 128}, {ProtoICMPv6, "EchoReply", 129}, {ProtoICMPv6, "TimeExceeded", 3}, {ProtoICMPv6, "RouterSolicitation", 133},
		{ProtoICMPv6, "Timestamp", -1}, {ProtoICMP, "PacketTooBig", -1}, {ProtoICMP, "echoreply", -1}, {ProtoTCP, "EchoReply", -1},
	} {
		kind, ok := tt.proto.ICMPType(tt.name)
		if ok != (tt.kind >= 0) || ok && int(kind) != tt.kind {
			t.Errorf("%s %s: got %d, %v, want %d", tt.proto, tt.name, kind, ok, tt.kind)
		}
	}
}

func TestEveryNameOfAnICMPTypeIsOne(t *testing.T) {
	for _, p := range []Proto{ProtoICMP, ProtoICMPv6} {
		seen, last := map[string]bool{}, uint8(0)
		for _, name := range p.ICMPNames() {
			kind, ok := p.ICMPType(name)
			if !ok || seen[name] || kind < last {
				t.Errorf("%s %s: %d, %v, is there twice or out of order", p, name, kind, ok)
			}
			seen[name], last = true, kind
			if first := p.ICMPName(kind); first == "" || !seen[first] {
				t.Errorf("%s type %d is printed as %q", p, kind, first)
			}
		}
	}
	if name := ProtoICMP.ICMPName(200); name != "" {
		t.Errorf("type 200 is called %q", name)
	}
}
