package cmd

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/endpoint/id"
)

func packetEvent(typ gen.EventType, verdict gen.Verdict, dir gen.Direction, reason, rule string) gen.Event {
	return gen.Event{Time: time.Unix(100, 0), Type: typ, Verdict: verdict, Direction: dir, Proto: "TCP", Reason: reason, Rule: gen.Rule{Text: rule},
		Source: gen.EventPeer{IP: "10.0.0.1", Port: 4000, Pod: "x/a"}, Destination: gen.EventPeer{IP: "10.0.0.2", Port: 80, Pod: "x/b"}}
}

func TestN62APacketIsOneLine(t *testing.T) {
	const egress, ingress = gen.DirectionEgress, gen.DirectionIngress
	policy := drop.Policy.String()
	allowOut := packetEvent(gen.EventVerdict, gen.VerdictAllow, egress, "", "not isolated")
	later := packetEvent(gen.EventDrop, gen.VerdictDeny, ingress, policy, "default deny")
	later.Time = later.Time.Add(time.Second)
	outside := packetEvent(gen.EventVerdict, gen.VerdictAllow, egress, "", "to the world")
	outside.Destination = gen.EventPeer{IP: "192.0.2.1", Port: 443, Identity: 9}
	for _, c := range []struct {
		what   string
		events []gen.Event
		want   []string
	}{
		{"allowed out, denied in", []gen.Event{allowOut, packetEvent(gen.EventDrop, gen.VerdictDeny, ingress, policy, "default deny")},
			[]string{"drop    deny ingress TCP 10.0.0.1:4000 (x/a) -> 10.0.0.2:80 (x/b) policy-default-deny: default deny; egress allows: not isolated"}},
		{"denied in both", []gen.Event{packetEvent(gen.EventVerdict, gen.VerdictDeny, ingress, policy, "rule in"), packetEvent(gen.EventDrop, gen.VerdictDeny, egress, policy, "rule out")},
			[]string{"drop    deny egress TCP 10.0.0.1:4000 (x/a) -> 10.0.0.2:80 (x/b) policy-default-deny: rule out; ingress denies: rule in"}},
		{"allowed in both", []gen.Event{allowOut, packetEvent(gen.EventVerdict, gen.VerdictAllow, ingress, "", "rule in")},
			[]string{"verdict allow egress TCP 10.0.0.1:4000 (x/a) -> 10.0.0.2:80 (x/b): not isolated; ingress allows: rule in"}},
		{"audited", []gen.Event{allowOut, packetEvent(gen.EventAudit, gen.VerdictDeny, ingress, policy, "rule in")},
			[]string{"audit   deny ingress TCP 10.0.0.1:4000 (x/a) -> 10.0.0.2:80 (x/b) policy-default-deny: rule in; egress allows: not isolated"}},
		{"two packets of a flow", []gen.Event{packetEvent(gen.EventDrop, gen.VerdictDeny, ingress, policy, "one"), later}, []string{": one", ": default deny"}},
		{"one event alone", []gen.Event{allowOut}, []string{": not isolated"}},
		{"to the outside", []gen.Event{outside}, []string{"10.0.0.1:4000 (x/a) -> 192.0.2.1:443 (world-ipv4): to the world"}},
		{"another reason", []gen.Event{packetEvent(gen.EventDrop, gen.VerdictDeny, egress, drop.MissedTailCall.String(), "")}, []string{"missed-tail-call"}},
	} {
		var lines []string
		l := &eventLines{print: func(s string) error { lines = append(lines, s); return nil }, held: map[packetKey]*heldEvent{}}
		for _, e := range c.events {
			require.NoError(t, l.add(e))
		}
		require.NoError(t, l.end())
		require.Len(t, lines, len(c.want), c.what)
		for i, w := range c.want {
			require.Contains(t, lines[i], w, c.what)
		}
	}
}

func TestN62AHeldEventIsPrintedWhenNoOtherComes(t *testing.T) {
	lines := make(chan string, 1)
	l := &eventLines{print: func(s string) error { lines <- s; return nil }, held: map[packetKey]*heldEvent{}}
	require.NoError(t, l.add(packetEvent(gen.EventVerdict, gen.VerdictAllow, gen.DirectionEgress, "", "alone")))
	select {
	case line := <-lines:
		require.Contains(t, line, "alone")
	case <-time.After(30 * time.Second):
		t.Fatal("the event is held for ever")
	}
}

func TestN62PeersHaveNames(t *testing.T) {
	for want, p := range map[string]gen.EventPeer{
		"192.0.2.1 (world-ipv4)":           {IP: "192.0.2.1", Identity: 9},
		"192.0.2.1:53 (host)":              {IP: "192.0.2.1", Port: 53, Identity: 1},
		"[fd00::1]:53 (world-ipv6)":        {IP: "fd00::1", Port: 53, Identity: 10},
		"10.0.0.1 (x/a)":                   {IP: "10.0.0.1", Identity: 300, Pod: "x/a"},
		"10.0.0.1 (identity 300)":          {IP: "10.0.0.1", Identity: 300, Labels: []string{"k8s:app=a"}},
		"192.0.2.1 (cidr:192.0.2.0/24)":    {IP: "192.0.2.1", Identity: 16777217, Labels: []string{"cidr:192.0.2.0/24", "reserved:world-ipv4"}},
		"192.0.2.1 (closed)":               {IP: "192.0.2.1", Identity: 99},
		"(unknown)":                        {},
		"10.0.0.9 (unmanaged)":             {IP: "10.0.0.9", Identity: 3},
		"10.0.0.9 (identity 4294967295)":   {IP: "10.0.0.9", Identity: 4294967295},
		"10.0.0.9:8080 (identity 1000000)": {IP: "10.0.0.9", Port: 8080, Identity: 1000000},
	} {
		require.Equal(t, want, eventPeer(p))
	}
}

// fakeEvents emits one event and then waits for the end.
type fakeEvents struct{ n int }

func (f *fakeEvents) HasEndpoint(ref id.Ref) bool { return ref.ID == 7 }
func (f *fakeEvents) Follow(ctx context.Context, subscribed func() error, emit func(gen.Event) error) error {
	if err := subscribed(); err != nil {
		return err
	}
	if err := emit(gen.Event{Type: gen.EventLost, Lost: uint64(f.n)}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// lockedBuffer is read while a command writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestN62AMonitorOutlivesTheAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "weir.sock")
	stop := serve(t, socket, api.Sources{Events: &fakeEvents{1}})
	var out, errOut lockedBuffer
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{out: &out, errOut: &errOut, socket: socket, format: "table"}
	c := &cobra.Command{}
	c.SetContext(ctx)
	done := make(chan error, 1)
	go func() { done <- a.runMonitor(c, gen.GetMonitorParams{}) }()
	until := func(b *lockedBuffer, text string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !strings.Contains(b.String(), text); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("no %q in %s%s", text, out.String(), errOut.String())
			}
		}
	}
	until(&out, "lost 1 events")
	stop()
	until(&errOut, "the agent went away; waiting for it to come back")
	stop = serve(t, socket, api.Sources{Events: &fakeEvents{2}})
	until(&errOut, "the agent is back")
	until(&out, "lost 2 events")
	require.Equal(t, 1, strings.Count(errOut.String(), "went away"))
	cancel()
	require.NoError(t, <-done)
	stop()
}

func TestN62AMonitorOfAnEndpointThatIsNotThereEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "weir.sock")
	t.Cleanup(serve(t, socket, api.Sources{Events: &fakeEvents{}}))
	code, _, errOut := runWeir(t, "--socket", socket, "monitor", "--endpoint", "8")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "no endpoint answers to 8")
	require.Contains(t, errOut, "weir endpoint list")
	code, _, errOut = runWeir(t, "--socket", fmt.Sprint(socket, ".none"), "monitor")
	require.Equal(t, exitFailed, code, "an agent that was never there is not waited for")
	require.Contains(t, errOut, "the agent is not running")
}
