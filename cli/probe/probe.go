package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	waits   map[lab.Flow]chan struct{}
	lost    uint64
}

// eventDelay is longer than the agent lets an event wait in the ring.
const eventDelay = 300 * time.Millisecond

// Follow returns once the agent has subscribed this reader.
func Follow(ctx context.Context, agent *client.Client) (*Recorder, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &Recorder{cancel: cancel, done: make(chan error, 1), denials: map[lab.Flow][]lab.Denial{}, waits: map[lab.Flow]chan struct{}{}}
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
	if e.Verdict != gen.VerdictDeny || e.Type == gen.EventAudit {
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
	if w := d.waits[flow]; w != nil {
		close(w)
		delete(d.waits, flow)
	}
	if !slices.Contains(d.denials[flow], denial) {
		d.denials[flow] = append(d.denials[flow], denial)
	}
	return nil
}

// Denied gives a channel that is closed once an event says that the flow was
// denied; for lab.ProbeOptions.
func (d *Recorder) Denied(f lab.Flow) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.waits[f]
	if w == nil {
		w = make(chan struct{})
		d.waits[f] = w
	}
	return w
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
	targets := l.Targets()
	results := l.Matrix(l.Sources(), targets)
	denials, err := Send(ctx, agent, results, lab.ProbeOptions{Timeout: timeout})
	if err != nil {
		return nil, err
	}
	return &Outcome{results, denials, lab.Tables(results, targets, denials)}, nil
}

// Send sends the flows of results and returns what the agent says was denied.
// One that got neither an answer nor a denial is sent once more with three times
// the patience: on a busy machine a packet may take longer than a probe waits.
func Send(ctx context.Context, agent *client.Client, results []lab.Result, opt lab.ProbeOptions) (map[lab.Flow][]lab.Denial, error) {
	denials, err := sendOnce(ctx, agent, results, opt)
	if err != nil {
		return nil, err
	}
	var again []lab.Result
	var places []int
	for i, r := range results {
		if lab.Letter(r, denials[r.Flow]) == lab.CellSilent {
			r.Flow.Src = netip.AddrPortFrom(r.Flow.Src.Addr(), 0)
			again, places = append(again, r), append(places, i)
		}
	}
	if len(again) == 0 {
		return denials, nil
	}
	if opt.Timeout == 0 {
		opt.Timeout = lab.DefaultProbeTimeout
	}
	opt.Timeout *= 3
	more, err := sendOnce(ctx, agent, again, opt)
	if err != nil {
		return nil, err
	}
	maps.Copy(denials, more)
	for j, i := range places {
		results[i] = again[j]
	}
	return denials, nil
}

func sendOnce(ctx context.Context, agent *client.Client, results []lab.Result, opt lab.ProbeOptions) (map[lab.Flow][]lab.Denial, error) {
	rec, err := Follow(ctx, agent)
	if err != nil {
		return nil, err
	}
	opt.Denied = rec.Denied
	sent := lab.SendProbes(ctx, results, opt)
	denials, _, err := rec.Stop()
	return denials, errors.Join(sent, err)
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
