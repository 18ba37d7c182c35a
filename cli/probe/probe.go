package probe

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/types"
)

// Recorder keeps the events of an agent while packets are sent.
type Recorder struct {
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	events  []gen.Event
	denials map[lab.Flow][]lab.Denial
	lost    uint64
}

// eventDelay is longer than the agent lets an event wait in the ring.
const eventDelay = 300 * time.Millisecond

// Follow returns once the agent has subscribed this reader.
func Follow(ctx context.Context, agent *client.Client) (*Recorder, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &Recorder{cancel: cancel, done: make(chan error, 1), denials: map[lab.Flow][]lab.Denial{}}
	started := make(chan struct{})
	go func() {
		d.done <- agent.Monitor(ctx, gen.GetMonitorParams{}, func() { close(started) }, d.add)
	}()
	select {
	case <-started:
		return d, nil
	case err := <-d.done:
		cancel()
		return nil, fmt.Errorf("following the agent's events: %w", err)
	}
}

func (d *Recorder) add(e gen.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, e)
	if e.Type == gen.EventLost {
		d.lost += e.Lost
	}
	if e.Verdict != gen.VerdictDeny {
		return nil
	}
	flow, ok := FlowOf(e)
	if !ok {
		return nil
	}
	denial := lab.Denial{Direction: string(e.Direction), Rule: e.Reason}
	if e.Rule.Text != "" {
		denial.Rule = e.Rule.Text
	}
	if !slices.Contains(d.denials[flow], denial) {
		d.denials[flow] = append(d.denials[flow], denial)
	}
	return nil
}

// FlowOf is the 5-tuple of an event; false for a packet that was not IP.
func FlowOf(e gen.Event) (lab.Flow, bool) {
	src, err1 := netip.ParseAddr(e.Source.IP)
	dst, err2 := netip.ParseAddr(e.Destination.IP)
	proto, err3 := types.ParseProto(e.Proto)
	flow := lab.Flow{Proto: proto, Src: netip.AddrPortFrom(src, e.Source.Port), Dst: netip.AddrPortFrom(dst, e.Destination.Port)}
	return flow, err1 == nil && err2 == nil && err3 == nil
}

// Stop waits for events that are on their way, and returns what was denied and
// all events, oldest first. Lost events are an error.
func (d *Recorder) Stop() (map[lab.Flow][]lab.Denial, []gen.Event, error) {
	time.Sleep(eventDelay)
	d.cancel()
	if err := <-d.done; err != nil {
		return nil, nil, fmt.Errorf("following the agent's events: %w", err)
	}
	if d.lost > 0 {
		return nil, nil, fmt.Errorf("%d events were lost, so a denied cell could not be told from a silent one; probe again", d.lost)
	}
	return d.denials, d.events, nil
}

// Outcome is the outcome of one probing.
type Outcome struct {
	Results []lab.Result
	Denials map[lab.Flow][]lab.Denial
	Tables  []lab.Table
}

// Matrix sends packets for the whole matrix of a lab while following its
// agent's events.
func Matrix(ctx context.Context, l *lab.Lab, agent *client.Client, timeout time.Duration) (*Outcome, error) {
	rec, err := Follow(ctx, agent)
	if err != nil {
		return nil, err
	}
	targets := l.Targets()
	results, err := l.Probe(ctx, l.Sources(), targets, lab.ProbeOptions{Timeout: timeout})
	if err != nil {
		return nil, err
	}
	denials, _, err := rec.Stop()
	if err != nil {
		return nil, err
	}
	return &Outcome{results, denials, lab.Tables(results, targets, denials)}, nil
}

// Write prints the tables and, behind them, every denied cell with its rules.
func (p *Outcome) Write(w io.Writer) error {
	for _, t := range p.Tables {
		if err := t.Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, r := range p.Results {
		for _, d := range p.Denials[r.Flow] {
			fmt.Fprintf(w, "%s -> %s (%s): denied at %s: %s\n", r.From.Name, r.To.Column(), r.To.Addr, d.Direction, d.Rule)
		}
	}
	return nil
}
