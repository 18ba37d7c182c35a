package cmd

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

// denialLog collects the denied verdicts of an agent while packets are sent.
type denialLog struct {
	cancel context.CancelFunc
	done   chan error

	mu     sync.Mutex
	byFlow map[lab.Flow][]lab.Denial
	lost   uint64
}

// eventDelay is longer than the agent lets an event wait in the ring.
const eventDelay = 300 * time.Millisecond

// followDenials returns once the agent has subscribed this reader.
func followDenials(ctx context.Context, agent *client.Client) (*denialLog, error) {
	ctx, cancel := context.WithCancel(ctx)
	d := &denialLog{cancel: cancel, done: make(chan error, 1), byFlow: map[lab.Flow][]lab.Denial{}}
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

func (d *denialLog) add(e gen.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Type == gen.EventLost {
		d.lost += e.Lost
	}
	if e.Verdict != gen.VerdictDeny {
		return nil
	}
	src, err1 := netip.ParseAddr(e.Source.IP)
	dst, err2 := netip.ParseAddr(e.Destination.IP)
	proto, err3 := types.ParseProto(e.Proto)
	if err1 != nil || err2 != nil || err3 != nil {
		return nil
	}
	denial := lab.Denial{Direction: string(e.Direction), Rule: e.Reason}
	if e.Rule.Text != "" {
		denial.Rule = e.Rule.Text
	}
	flow := lab.Flow{Proto: proto, Src: netip.AddrPortFrom(src, e.Source.Port), Dst: netip.AddrPortFrom(dst, e.Destination.Port)}
	if !slices.Contains(d.byFlow[flow], denial) {
		d.byFlow[flow] = append(d.byFlow[flow], denial)
	}
	return nil
}

// stop waits for events that are on their way and returns what was denied.
func (d *denialLog) stop() (map[lab.Flow][]lab.Denial, error) {
	time.Sleep(eventDelay)
	d.cancel()
	if err := <-d.done; err != nil {
		return nil, fmt.Errorf("following the agent's events: %w", err)
	}
	if d.lost > 0 {
		return nil, fmt.Errorf("%d events were lost, so a denied cell could not be told from a silent one; probe again", d.lost)
	}
	return d.byFlow, nil
}

// write prints the tables and, behind them, every denied cell with its rules.
func (p *probed) write(w io.Writer) error {
	for _, t := range p.tables {
		if err := t.Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, r := range p.results {
		for _, d := range p.denials[r.Flow] {
			fmt.Fprintf(w, "%s -> %s (%s): denied at %s: %s\n", r.From.Name, r.To.Column(), r.To.Addr, d.Direction, d.Rule)
		}
	}
	return nil
}
