package k8s

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weirnet/weir/pkg/policy/api"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// icmps translates a list that has members to types of ICMP messages.
func (t *translator) icmps(rules []api.ICMPRule, path string) []types.Port {
	out := []types.Port{}
	for i, r := range rules {
		at := fmt.Sprintf("%s[%d].fields", path, i)
		if !t.listed(len(r.Fields), api.MaxICMPFields, at, "types", "icmps", "protocol") {
			continue
		}
		for j, f := range r.Fields {
			out = append(out, t.icmp(f, fmt.Sprintf("%s[%d]", at, j)))
		}
	}
	return out
}

func (t *translator) icmp(f api.ICMPField, path string) types.Port {
	proto, other := wtypes.ProtoICMP, wtypes.ProtoICMPv6
	switch f.Family {
	case "", api.FamilyIPv4:
	case api.FamilyIPv6:
		proto, other = other, proto
	default:
		t.fail(path+".family", "%q is not known; give %s or %s", clip(f.Family), api.FamilyIPv4, api.FamilyIPv6)
	}
	return types.Port{Proto: proto, Port: uint16(t.icmpType(f.Type, proto, other, path+".type")), ICMPType: true}
}

// icmpType reads a number, as number or as text, or a name of the protocol's.
func (t *translator) icmpType(v *intstr.IntOrString, proto, other wtypes.Proto, path string) uint8 {
	if v == nil {
		t.fail(path, "is missing; give a number from 0 to 255 or a name such as EchoRequest")
		return 0
	}
	if v.Type == intstr.String {
		if kind, ok := proto.ICMPType(v.StrVal); ok {
			return kind
		}
	}
	n, err := strconv.Atoi(v.String())
	switch {
	case err == nil && n >= 0 && n <= 255:
		return uint8(n)
	case err == nil:
		t.fail(path, "is %d; give a number from 0 to 255", n)
	case slices.Contains(other.ICMPNames(), v.StrVal):
		t.fail(path, "%q is a type of %s, not of %s; give the other family", v.StrVal, other, proto)
	default:
		next := "give a number from 0 to 255 or a name such as EchoRequest"
		if near := nearest(v.StrVal, proto.ICMPNames()); near != "" {
			next = "did you mean " + near + "?"
		}
		t.fail(path, "%q is no type of %s; %s", clip(v.StrVal), proto, next)
	}
	return 0
}
