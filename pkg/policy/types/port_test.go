package types

import (
	"testing"

	"github.com/stretchr/testify/require"
	wtypes "github.com/weirnet/weir/pkg/types"
)

func TestAPortIsPrintedAsItIsWritten(t *testing.T) {
	for want, p := range map[string]Port{
		"*/ANY": {}, "*/TCP": {Proto: wtypes.ProtoTCP}, "*/ICMP": {Proto: wtypes.ProtoICMP}, "80/TCP": {Proto: wtypes.ProtoTCP, Port: 80},
		"80-90/UDP": {Proto: wtypes.ProtoUDP, Port: 80, End: 90}, "http/TCP": {Proto: wtypes.ProtoTCP, Name: "http"},
		"type 0 (EchoReply)/ICMP":       {Proto: wtypes.ProtoICMP, ICMPType: true},
		"type 128 (EchoRequest)/ICMPv6": {Proto: wtypes.ProtoICMPv6, Port: 128, ICMPType: true},
		"type 200/ICMP":                 {Proto: wtypes.ProtoICMP, Port: 200, ICMPType: true},
	} {
		require.Equal(t, want, p.String())
	}
}
