package explain

import (
	"testing"

	wtypes "github.com/weirnet/weir/pkg/types"
)

func TestPortText(t *testing.T) {
	for _, c := range []struct {
		proto wtypes.Proto
		port  uint16
		want  string
	}{
		{wtypes.ProtoTCP, 80, "80/TCP"}, {wtypes.ProtoICMP, 8, "ICMP"}, {wtypes.ProtoICMPv6, 128, "ICMPv6"}, {47, 0, "47"},
		{wtypes.ProtoICMP, 0, "type 0 (EchoReply)/ICMP"}, {wtypes.ProtoICMPv6, 8, "type 8/ICMPv6"},
	} {
		if got := PortText(c.proto, c.port); got != c.want {
			t.Errorf("%d of %s: %q, want %q", c.port, c.proto, got, c.want)
		}
	}
}
