package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) why() *cobra.Command {
	return &cobra.Command{Use: "why SRC DST:PORT[/PROTO]", Short: "say which rule allows or denies a connection",
		Long: "SRC and DST are a pod (NAMESPACE/NAME), an endpoint id, or an address; an IPv6 address with a port is written\n" +
			"[ADDRESS]:PORT. PORT is a number or the name of a port of the destination. PROTO is TCP where absent; a ping is\n" +
			"DST/ICMP, another type DST:TYPE/ICMP with a number or a name such as EchoReply.\nPrints the verdict of each direction, the deciding rule with file and line, and what lost.\n" +
			"Exit code 1 where the connection is denied, even if an endpoint in audit mode lets it through; a line says so then.",
		Example: "  weir why shop/frontend shop/api:http\n  weir why 203.0.113.7 shop/db:5432/TCP",
		Args:    exactArgs(2), RunE: a.runWhy}
}

func (a *app) runWhy(c *cobra.Command, args []string) error {
	q, err := parseWhy(args[0], args[1])
	if err != nil {
		return err
	}
	e, err := a.agent().Why(c.Context(), q.from, q.to, q.port, q.proto)
	if err != nil {
		return err
	}
	return a.showExplanations(c, e)
}

// whyQuestion is the command line taken apart; empty fields were not given.
type whyQuestion struct{ from, to, port, proto string }

// parseWhy takes DST:PORT[/PROTO] apart. A pod's name holds one slash itself.
func parseWhy(from, dst string) (whyQuestion, error) {
	q := whyQuestion{from: from}
	rest := dst
	if inner, ok := strings.CutPrefix(dst, "["); ok {
		var closed bool
		if q.to, rest, closed = strings.Cut(inner, "]"); !closed {
			return q, usageError{fmt.Sprintf("%q has no closing bracket; write [ADDRESS]:PORT", dst)}
		}
	} else if colon := strings.LastIndex(dst, ":"); colon >= 0 {
		q.to, rest = dst[:colon], dst[colon:]
	} else if slash := strings.LastIndex(dst, "/"); slash >= 0 {
		q.to, rest = dst[:slash], dst[slash:]
	}
	if port, ok := strings.CutPrefix(rest, ":"); ok {
		q.port, q.proto, _ = strings.Cut(port, "/")
	} else if proto, ok := strings.CutPrefix(rest, "/"); ok && isICMP(proto) {
		q.proto = proto
	}
	if q.to == "" || q.port == "" && !isICMP(q.proto) {
		return q, usageError{fmt.Sprintf("%q is not DST:PORT, DST:PORT/PROTO or DST/ICMP", dst)}
	}
	return q, nil
}

func isICMP(proto string) bool {
	return strings.EqualFold(proto, "icmp") || strings.EqualFold(proto, "icmpv6")
}
