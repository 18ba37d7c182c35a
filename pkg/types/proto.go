package types

import (
	"fmt"
	"strconv"
	"strings"
)

// Proto is an IP protocol number (IANA "Assigned Internet Protocol Numbers").
// The zero value stands for "any protocol" in rules and map keys.
type Proto uint8

// The protocols that policy can name.
const (
	ProtoAny    Proto = 0
	ProtoICMP   Proto = 1
	ProtoTCP    Proto = 6
	ProtoUDP    Proto = 17
	ProtoICMPv6 Proto = 58
	ProtoSCTP   Proto = 132
)

var protoNames = map[Proto]string{
	ProtoAny: "ANY", ProtoICMP: "ICMP", ProtoTCP: "TCP", ProtoUDP: "UDP", ProtoICMPv6: "ICMPv6", ProtoSCTP: "SCTP",
}

// ParseProto reads a protocol's name in any case, or its number 0 to 255.
func ParseProto(s string) (Proto, error) {
	for p, n := range protoNames {
		if strings.EqualFold(n, s) {
			return p, nil
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("protocol %q is not known; give TCP, UDP, SCTP, ICMP, ICMPv6, ANY or a number from 0 to 255", s)
	}
	return Proto(n), nil
}

// HasPorts reports whether the protocol carries port numbers that policy can match.
func (p Proto) HasPorts() bool { return p == ProtoTCP || p == ProtoUDP || p == ProtoSCTP }

// String prints the protocol's name, or its number where it has none here.
func (p Proto) String() string {
	if n, ok := protoNames[p]; ok {
		return n
	}
	return strconv.Itoa(int(p))
}
