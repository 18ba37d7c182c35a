package explain

import (
	"fmt"
	"strings"

	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// PortText prints a destination port for people: "80/TCP", "ICMP" for a ping, and
// any other type of ICMP by number and name.
func PortText(proto wtypes.Proto, port uint16) string {
	if proto.HasPorts() {
		return fmt.Sprintf("%d/%s", port, proto)
	}
	if ping, ok := proto.ICMPType("EchoRequest"); ok && port != uint16(ping) {
		return types.Port{Proto: proto, Port: port, ICMPType: true}.String()
	}
	return proto.String()
}

// String prints the explanation for people.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s %s: %s\n", e.From.Name, e.To.Name, PortText(e.Proto, e.Port), e.Verdict)
	e.Egress.write(&b, "egress of "+e.From.Name, e.From)
	e.Ingress.write(&b, "ingress of "+e.To.Name, e.To)
	return b.String()
}

func (j *Judgement) write(b *strings.Builder, where string, end Peer) {
	if j == nil {
		fmt.Fprintf(b, "  %s: not judged, %s is no pod of this node\n", where, end.Name)
		return
	}
	fmt.Fprintf(b, "  %s: %s by %s\n", where, j.Verdict, j.Rule.Ref)
	if end.Audit && j.Verdict == types.Deny && !j.closed() {
		fmt.Fprintf(b, "    let through all the same: %s is in audit mode\n", end.Name)
	}
	for _, l := range j.Losers {
		if l.Entry.Verdict == types.Pass && !l.Skipped && l.Entry.Beats(j.Rule.Entry) {
			fmt.Fprintf(b, "    passed to the next tier by %s\n", l.Ref)
			continue
		}
		fmt.Fprintf(b, "    lost: %s by %s, %s\n", l.Entry.Verdict, l.Ref, l.Why)
	}
	if j.Rule.Ref.Kind == types.KindPolicy && len(j.Isolating) > 0 {
		names := make([]string, len(j.Isolating))
		for i, r := range j.Isolating {
			names[i] = r.String()
		}
		fmt.Fprintf(b, "    isolated by %s\n", strings.Join(names, ", "))
	}
	for _, c := range j.Changes {
		fmt.Fprintf(b, "    would be %s %s\n", opposite(j.Verdict), c)
	}
}

func opposite(v types.Verdict) types.Verdict {
	if v == types.Deny {
		return types.Allow
	}
	return types.Deny
}
