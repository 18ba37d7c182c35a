package cmd

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/weirnet/weir/api/v1"
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
		Long: "One line a packet, with the verdicts of both its directions, or with -o json one JSON object a line for each event,\n" +
			"until interrupted. What is in brackets behind an address is its pod, its prefix or its identity. When the agent goes away\n" +
			"it is waited for, and lines on the standard error say so.", Args: exactArgs(0)}
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

// reconnectPoll is how often an agent that went away is asked for.
const reconnectPoll = 500 * time.Millisecond

// runMonitor prints events until the person ends it. An agent that goes away after
// it was followed is waited for.
func (a *app) runMonitor(c *cobra.Command, p gen.GetMonitorParams) error {
	ctx, agent := c.Context(), a.agent()
	defer agent.Close()
	emit, end := a.eventPrinter()
	followed, away := false, false
	for {
		err := agent.Monitor(ctx, p, func() {
			if away {
				fmt.Fprintf(a.errOut, "weir: %s the agent is back; its events are printed again, those in between are not known\n", time.Now().Format(time.TimeOnly))
			}
			followed, away = true, false
		}, emit)
		if failed := end(); err == nil {
			err = failed
		}
		switch {
		case ctx.Err() != nil:
			return nil // the person ended it
		case !followed || v1.CodeOf(err) != v1.CodeUnreachable:
			return err
		case !away:
			away = true
			fmt.Fprintf(a.errOut, "weir: %s the agent went away; waiting for it to come back (Ctrl-C ends that)\n", time.Now().Format(time.TimeOnly))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnectPoll):
		}
	}
}

// eventPrinter returns what prints an event, and what to call when no more come.
func (a *app) eventPrinter() (emit func(gen.Event) error, end func() error) {
	if a.format == "json" {
		enc := json.NewEncoder(a.out)
		enc.SetEscapeHTML(false)
		return func(e gen.Event) error { return enc.Encode(e) }, func() error { return nil }
	}
	l := &eventLines{print: func(line string) error { _, err := fmt.Fprintln(a.out, line); return err }, held: map[packetKey]*heldEvent{}}
	return l.add, l.end
}
