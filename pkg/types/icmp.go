package types

// icmpName is a name of an ICMP type; of several names of one type the first is
// the one that is printed.
type icmpName struct {
	name string
	kind uint8
}

// Names of the IANA registries "ICMP Type Numbers" and "ICMPv6 type Numbers",
// run together.
var icmpNames = map[Proto][]icmpName{
	ProtoICMP: {
		{"EchoReply", 0}, {"DestinationUnreachable", 3}, {"Redirect", 5}, {"EchoRequest", 8}, {"Echo", 8},
		{"RouterAdvertisement", 9}, {"RouterSolicitation", 10}, {"RouterSelection", 10}, {"TimeExceeded", 11},
		{"ParameterProblem", 12}, {"Timestamp", 13}, {"TimestampReply", 14}, {"Photuris", 40},
		{"ExtendedEchoRequest", 42}, {"ExtendedEchoReply", 43},
	},
	ProtoICMPv6: {
		{"DestinationUnreachable", 1}, {"PacketTooBig", 2}, {"TimeExceeded", 3}, {"ParameterProblem", 4},
		{"EchoRequest", 128}, {"EchoReply", 129}, {"MulticastListenerQuery", 130}, {"MulticastListenerReport", 131},
		{"MulticastListenerDone", 132}, {"RouterSolicitation", 133}, {"RouterAdvertisement", 134},
		{"NeighborSolicitation", 135}, {"NeighborAdvertisement", 136}, {"RedirectMessage", 137},
		{"RouterRenumbering", 138}, {"ICMPNodeInformationQuery", 139}, {"ICMPNodeInformationResponse", 140},
		{"InverseNeighborDiscoverySolicitation", 141}, {"InverseNeighborDiscoveryAdvertisement", 142},
		{"HomeAgentAddressDiscoveryRequest", 144}, {"HomeAgentAddressDiscoveryReply", 145},
		{"MobilePrefixSolicitation", 146}, {"MobilePrefixAdvertisement", 147},
		{"DuplicateAddressRequestCodeSuffix", 157}, {"DuplicateAddressConfirmationCodeSuffix", 158},
		{"ExtendedEchoRequest", 160}, {"ExtendedEchoReply", 161},
	},
}

// IsICMP reports whether the protocol is ICMP of either family.
func (p Proto) IsICMP() bool { return p == ProtoICMP || p == ProtoICMPv6 }

// ICMPType returns the type that a name stands for; the names of the families differ.
func (p Proto) ICMPType(name string) (uint8, bool) {
	for _, n := range icmpNames[p] {
		if n.name == name {
			return n.kind, true
		}
	}
	return 0, false
}

// ICMPName returns the name of a type, or "" if it has none here.
func (p Proto) ICMPName(kind uint8) string {
	for _, n := range icmpNames[p] {
		if n.kind == kind {
			return n.name
		}
	}
	return ""
}

// ICMPNames lists every name of a type, in the order of numbers.
func (p Proto) ICMPNames() []string {
	out := make([]string, len(icmpNames[p]))
	for i, n := range icmpNames[p] {
		out[i] = n.name
	}
	return out
}
