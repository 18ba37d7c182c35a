package regeneration

import "slices"

// Station is a named step that an endpoint passes from CNI ADD to packets.
type Station string

// The stations in the order in which they are passed.
const (
	StationCNIAdd        Station = "cni.add"
	StationIPAMLease     Station = "ipam.lease"
	StationLinkBuild     Station = "link.build"
	StationAPIAccept     Station = "api.accept"
	StationCreated       Station = "endpoint.created"
	StationMetadata      Station = "metadata"
	StationIdentity      Station = "identity"
	StationPolicyResolve Station = "policy.resolve"
	StationPlan          Station = "plan"
	StationRedirect      Station = "redirect"
	StationLoad          Station = "load"
	StationPolicySwap    Station = "policy.swap"
	StationAttach        Station = "attach"
	StationExpose        Station = "expose"
	StationReady         Station = "ready"
	StationCNIReply      Station = "cni.reply"
	StationPacket        Station = "packet"
	StationEvent         Station = "event"
)

// Next is the station behind s; that of the empty one is the first. Empty after the last.
func (s Station) Next() Station {
	all := Stations()
	if at := slices.Index(all, s) + 1; at < len(all) {
		return all[at]
	}
	return ""
}

// Stations lists all stations in order.
func Stations() []Station {
	return []Station{
		StationCNIAdd, StationIPAMLease, StationLinkBuild, StationAPIAccept, StationCreated,
		StationMetadata, StationIdentity, StationPolicyResolve, StationPlan, StationRedirect,
		StationLoad, StationPolicySwap, StationAttach, StationExpose, StationReady,
		StationCNIReply, StationPacket, StationEvent,
	}
}
