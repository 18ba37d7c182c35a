package cmd

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
)

func (a *app) monitor() *cobra.Command {
	var f struct {
		types                                     []string
		verdict, direction, endpoint, addr, proto string
		identity                                  uint32
		port                                      uint16
	}
	c := &cobra.Command{Use: "monitor", Short: "print verdicts and drops as they happen",
		Long: "One line an event, or one JSON object a line with -o json, until interrupted.", Args: exactArgs(0)}
	fl := c.Flags()
	fl.StringSliceVar(&f.types, "type", nil, "only these types: drop, verdict, audit, lost")
	fl.StringVar(&f.verdict, "verdict", "", "only allow or deny")
	fl.StringVar(&f.direction, "direction", "", "only ingress or egress")
	fl.StringVar(&f.endpoint, "endpoint", "", "only this endpoint: an id, or pod-name:NAMESPACE/NAME")
	fl.Uint32Var(&f.identity, "identity", 0, "only events with this identity on either side")
	fl.StringVar(&f.addr, "address", "", "only events with this address, or an address in this prefix")
	fl.Uint16Var(&f.port, "port", 0, "only events with this port on either side")
	fl.StringVar(&f.proto, "proto", "", "only this protocol")
	c.RunE = func(c *cobra.Command, _ []string) error {
		p := gen.GetMonitorParams{}
		for _, t := range f.types {
			if !gen.EventType(t).Valid() {
				return usageError{fmt.Sprintf("--type %q is not known; give drop, verdict, audit or lost", t)}
			}
			p.Type = append(p.Type, gen.EventType(t))
		}
		if f.verdict != "" {
			v := gen.Verdict(f.verdict)
			if !v.Valid() {
				return usageError{fmt.Sprintf("--verdict %q is not known; give allow or deny", f.verdict)}
			}
			p.Verdict = &v
		}
		if f.direction != "" {
			d := gen.Direction(f.direction)
			if !d.Valid() {
				return usageError{fmt.Sprintf("--direction %q is not known; give ingress or egress", f.direction)}
			}
			p.Direction = &d
		}
		p.Endpoint, p.IP, p.Proto = given(f.endpoint), given(f.addr), given(f.proto)
		p.Identity, p.Port = given(f.identity), given(f.port)
		return a.runMonitor(c, p)
	}
	return c
}

// given returns nil for the zero value: a filter that was not given.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func (a *app) runMonitor(c *cobra.Command, p gen.GetMonitorParams) error {
	agent := a.agent()
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	err := agent.Monitor(c.Context(), p, nil, func(e gen.Event) error {
		if a.format == "json" {
			return enc.Encode(e)
		}
		_, err := fmt.Fprintln(a.out, eventLine(e))
		return err
	})
	if c.Context().Err() != nil {
		return nil // the person ended it
	}
	return err
}

// eventLine prints an event for people.
func eventLine(e gen.Event) string {
	at := e.Time.Format("15:04:05.000000")
	if e.Type == gen.EventLost && e.Endpoint != 0 {
		return fmt.Sprintf("%s left out %d events of endpoint %d, which are more than its share", at, e.Lost, e.Endpoint)
	}
	if e.Type == gen.EventLost {
		return fmt.Sprintf("%s lost %d events, this reader is too slow", at, e.Lost)
	}
	what := e.Proto
	if strings.HasPrefix(e.Proto, "ICMP") { // what stands for a port there is the identifier of an echo
		what += fmt.Sprintf(" type %d code %d", e.IcmpType, e.IcmpCode)
		e.Source.Port, e.Destination.Port = 0, 0
	}
	line := fmt.Sprintf("%s %-7s %s %s %s %s -> %s", at, e.Type, e.Verdict, e.Direction, what, eventPeer(e.Source), eventPeer(e.Destination))
	if e.Reason != "" {
		line += " " + e.Reason
	}
	if e.Rule.Text != "" {
		line += ": " + e.Rule.Text
	}
	if e.Rule.Log != "" {
		line += fmt.Sprintf(" log %q", e.Rule.Log)
	}
	return line
}

func eventPeer(p gen.EventPeer) string {
	addr := p.IP
	if p.Port != 0 {
		addr = net.JoinHostPort(p.IP, fmt.Sprint(p.Port))
	}
	name := p.Pod
	if name == "" {
		name = fmt.Sprint(p.Identity)
	}
	return strings.Join([]string{addr, "(" + name + ")"}, " ")
}
