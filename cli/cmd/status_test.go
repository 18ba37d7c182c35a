package cmd

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
)

// fakeAgent answers /healthz on a socket of its own.
type fakeAgent struct{ status atomic.Pointer[gen.Status] }

func (f *fakeAgent) Status(context.Context) gen.Status           { return *f.status.Load() }
func (f *fakeAgent) Config(context.Context) gen.Config           { return gen.Config{} }
func (f *fakeAgent) Maps(context.Context) ([]gen.MapInfo, error) { return nil, nil }

// endpointHandlers has another name than api.Handlers, so that both can be embedded.
type endpointHandlers = endpointapi.Handlers

// serve starts an API with these sources and returns its socket and how to stop it.
func serve(t *testing.T, socket string, src api.Sources) (stop func()) {
	t.Helper()
	s := api.NewServer(api.Config{Path: socket, Logger: slog.New(slog.DiscardHandler), Software: "test", Handlers: struct {
		*api.Handlers
		*endpointHandlers
	}{api.NewHandlers(src, "test"), endpointapi.NewHandlers(nil, nil, nil)}})
	require.NoError(t, s.Listen())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = s.Serve(ctx); close(ended) }()
	return func() { cancel(); <-ended }
}

func TestN50StatusEndsWithWhatIsBroken(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "weir.sock")
	f := &fakeAgent{}
	since := time.Now().Add(-3 * time.Minute)
	warning := func(name string, b gen.Breaks, state gen.State) gen.Component {
		return gen.Component{Name: name, State: state, Message: "something is wrong", Breaks: b, Next: "weir endpoint list", Since: since}
	}
	f.status.Store(&gen.Status{Ready: true})
	t.Cleanup(serve(t, socket, api.Sources{Status: f}))
	for _, c := range []struct {
		what   string
		ready  bool
		parts  []gen.Component
		code   int
		words  []string
		absent []string
	}{
		{"nothing is wrong", true, nil, exitOK, []string{"all is well"}, []string{"next:"}},
		{"only what breaks nothing", true, []gen.Component{warning("events", gen.BreaksNothing, gen.StateWarning)}, exitOK,
			[]string{"1 warning, which breaks nothing", "events: warning: something is wrong\n  breaks nothing, since ", "(3 min)\n  next: weir endpoint list\n"}, nil},
		{"enforcement", true, []gen.Component{warning("audit", gen.BreaksEnforcement, gen.StateWarning), warning("events", gen.BreaksNothing, gen.StateWarning)}, exitNo,
			[]string{"2 warnings: 1 breaks enforcement, 1 breaks nothing", "breaks enforcement, since"}, nil},
		{"pods", true, []gen.Component{warning("not-ready", gen.BreaksPods, gen.StateWarning)}, exitNo, []string{"breaks pods"}, nil},
		{"failing", true, []gen.Component{warning("disk", "", gen.StateFailing)}, exitNo, []string{"disk: failing: "}, nil},
		{"starting", false, []gen.Component{{Name: "start", State: gen.StateStarting, Message: "loading"}}, exitFailed, []string{"start: starting: loading\n"}, []string{"since"}},
		{"starting, and something breaks", false, []gen.Component{warning("audit", gen.BreaksEnforcement, gen.StateWarning)}, exitFailed, []string{"audit"}, nil},
		{"many of a kind", true, []gen.Component{warning("audit", gen.BreaksEnforcement, gen.StateWarning), warning("audit", gen.BreaksEnforcement, gen.StateWarning),
			warning("audit", gen.BreaksEnforcement, gen.StateWarning), warning("audit", gen.BreaksEnforcement, gen.StateWarning), warning("audit", gen.BreaksEnforcement, gen.StateWarning),
			warning("audit", gen.BreaksEnforcement, gen.StateWarning), warning("audit", gen.BreaksEnforcement, gen.StateWarning)}, exitNo, []string{"audit: 2 more; weir status --all lists them"}, nil},
	} {
		f.status.Store(&gen.Status{Ready: c.ready, Verdict: gen.StateWarning, Summary: "all is well", Components: c.parts})
		code, out, errOut := runWeir(t, "--socket", socket, "status")
		require.Equal(t, c.code, code, "%s: %s%s", c.what, out, errOut)
		for _, w := range c.words {
			require.Contains(t, out, w, c.what)
		}
		for _, w := range c.absent {
			require.NotContains(t, out, w, c.what)
		}
		code, _, _ = runWeir(t, "--socket", socket, "status", "-o", "json")
		require.Equal(t, c.code, code, "%s with -o json", c.what)
	}
	_, out, _ := runWeir(t, "--socket", socket, "status", "--all")
	require.Equal(t, 7, strings.Count(out, "audit: warning: "))
}

func TestN50StatusWaitsForAnAgentThatIsReady(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "weir.sock")
	code, _, errOut := runWeir(t, "--socket", socket, "status")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "the agent is not running")
	code, _, _ = runWeir(t, "--socket", socket, "status", "--wait", "1ms")
	require.Equal(t, exitFailed, code, "it waits in vain")
	f := &fakeAgent{}
	f.status.Store(&gen.Status{Verdict: gen.StateStarting, Summary: "start: loading"})
	type answer struct {
		code int
		out  string
	}
	done := make(chan answer)
	go func() {
		code, out, _ := runWeir(t, "--socket", socket, "status", "--wait", "60s")
		done <- answer{code, out}
	}()
	t.Cleanup(serve(t, socket, api.Sources{Status: f}))
	select {
	case got := <-done:
		t.Fatalf("it did not wait: %+v", got)
	case <-time.After(3 * statusPoll):
	}
	f.status.Store(&gen.Status{Ready: true, Verdict: gen.StateOk, Summary: "all is well"})
	got := <-done
	require.Equal(t, exitOK, got.code)
	require.Contains(t, got.out, "all is well")
}
