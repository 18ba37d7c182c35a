package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
)

func (a *app) why() *cobra.Command {
	return &cobra.Command{Use: "why SRC DST:PORT[/PROTO]", Short: "say which rule allows or denies a connection",
		Long: "SRC and DST are a pod (NAMESPACE/NAME), an endpoint id, or an address; an IPv6 address with a port is written\n" +
			"[ADDRESS]:PORT. PORT is a number or the name of a port of the destination. PROTO is TCP where absent; for ICMP\n" +
			"write DST/ICMP.\nPrints the verdict of each direction, the deciding rule with file and line, and what lost.\n" +
			"Exit code 1 where the connection is denied.",
		Example: "  weir why shop/frontend shop/api:http\n  weir why 203.0.113.7 shop/db:5432/TCP",
		Args:    exactArgs(2), RunE: a.runWhy}
}

func (a *app) runWhy(c *cobra.Command, args []string) error {
	params, err := parseWhy(args[0], args[1])
	if err != nil {
		return err
	}
	agent, err := a.agent()
	if err != nil {
		return err
	}
	e, err := agent.GetWhy(c.Context(), params)
	if err != nil {
		return err
	}
	err = a.show(e, func() error {
		_, err := fmt.Fprintln(a.out, strings.TrimRight(e.Text, "\n"))
		return err
	})
	if err == nil && e.Verdict == gen.VerdictDeny {
		return errNo
	}
	return err
}

// parseWhy takes DST:PORT[/PROTO] apart. A pod's name holds one slash itself.
func parseWhy(from, dst string) (*gen.GetWhyParams, error) {
	p := &gen.GetWhyParams{From: from, To: dst}
	colon := strings.LastIndex(dst, ":")
	if rest, ok := strings.CutPrefix(dst, "["); ok {
		addr, port, found := strings.Cut(rest, "]")
		if !found {
			return nil, usageError{fmt.Sprintf("%q has no closing bracket; write [ADDRESS]:PORT", dst)}
		}
		p.To, dst, colon = addr, port, strings.LastIndex(port, ":")
	} else if colon >= 0 {
		p.To = dst[:colon]
	}
	if colon < 0 {
		if before, ok := strings.CutSuffix(strings.ToLower(dst), "/icmp"); ok {
			proto := "ICMP"
			p.Proto = &proto
			if !strings.HasPrefix(dst, "/") {
				p.To = dst[:len(before)]
			}
			return p, nil
		}
		return nil, usageError{fmt.Sprintf("%q names no port; write DST:PORT or DST:PORT/PROTO", dst)}
	}
	port, proto, withProto := strings.Cut(dst[colon+1:], "/")
	if port == "" || p.To == "" {
		return nil, usageError{fmt.Sprintf("%q is not DST:PORT or DST:PORT/PROTO", dst)}
	}
	p.Port = &port
	if withProto {
		p.Proto = &proto
	}
	return p, nil
}
