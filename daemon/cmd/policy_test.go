package cmd

import (
	"testing"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/types"
)

func TestWhyAsksForATypeOfICMPByNumberOrName(t *testing.T) {
	for _, c := range []struct {
		proto types.Proto
		text  string
		kind  uint16
	}{
		{types.ProtoICMP, "", 8}, {types.ProtoICMPv6, "", 128}, {types.ProtoICMP, "EchoReply", 0}, {types.ProtoICMPv6, "EchoReply", 129},
		{types.ProtoICMP, "0", 0}, {types.ProtoICMPv6, "255", 255},
	} {
		kind, err := icmpType(c.text, c.proto)
		if err != nil || kind != c.kind {
			t.Errorf("%s %q: %d, %v, want %d", c.proto, c.text, kind, err, c.kind)
		}
	}
	for _, bad := range []string{"256", "-1", "http", "PacketTooBig"} {
		if kind, err := icmpType(bad, types.ProtoICMP); v1.CodeOf(err) != v1.CodeInvalid {
			t.Errorf("%q is type %d, %v", bad, kind, err)
		}
	}
}
