package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
)

// rest stands for the operations below /endpoint.
type rest struct{ gen.StrictServerInterface }

// joined is how the daemon joins the two sets of handlers.
type joined struct {
	rest
	*Handlers
}

// fakeStatus answers what a test sets.
type fakeStatus struct {
	status func(ctx context.Context) gen.Status
	maps   []gen.MapInfo
	err    error
}

func (f *fakeStatus) Status(ctx context.Context) gen.Status {
	if f.status == nil {
		return gen.Status{Verdict: gen.StateOk, Ready: true}
	}
	return f.status(ctx)
}
func (f *fakeStatus) Config(context.Context) gen.Config { return gen.Config{NodeName: "n1"} }
func (f *fakeStatus) Maps(context.Context) ([]gen.MapInfo, error) {
	return f.maps, f.err
}

type testServer struct {
	t      *testing.T
	path   string
	client *http.Client
	logs   *bytes.Buffer
	stop   context.CancelFunc
	ended  chan error
}

func startServer(t *testing.T, src Sources, change func(*Config)) *testServer {
	path := filepath.Join(t.TempDir(), "run", "weir.sock")
	s := &testServer{t: t, path: path, logs: &bytes.Buffer{}, ended: make(chan error, 1)}
	cfg := Config{Path: path, Handlers: joined{Handlers: NewHandlers(src, "1.2.3")}, Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: s.logs, c: make(chan struct{}, 1)}, nil)), Software: "1.2.3"}
	if change != nil {
		change(&cfg)
	}
	server := NewServer(cfg)
	require.NoError(t, server.Listen())
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.ended <- server.Serve(ctx) }()
	s.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(func() { stop(); s.client.CloseIdleConnections() })
	return s
}

// lockedWriter lets handlers log at the same time.
type lockedWriter struct {
	w io.Writer
	c chan struct{}
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.c <- struct{}{}
	defer func() { <-l.c }()
	return l.w.Write(b)
}

// ask sends a request and reads the answer, an error form where it is one.
func (s *testServer) ask(method, path string, body io.Reader, header ...string) (*http.Response, gen.Error) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://localhost"+path, body)
	require.NoError(s.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	var e gen.Error
	if resp.StatusCode >= 400 {
		require.NoError(s.t, json.Unmarshal(text, &e), string(text))
	}
	return resp, e
}

func TestEveryAnswerCarriesTheVersion(t *testing.T) {
	s := startServer(t, Sources{Status: &fakeStatus{}}, nil)
	for _, path := range []string{"/v1/healthz", "/v1/nothing", "/v1/policy"} {
		resp, _ := s.ask("GET", path, nil)
		require.Equal(t, v1.Version, resp.Header.Get(v1.VersionHeader), path)
		require.Equal(t, "1.2.3", resp.Header.Get(v1.SoftwareHeader), path)
	}
}

func TestAClientOfAnotherMajorVersionIsRefusedWithBothVersions(t *testing.T) {
	s := startServer(t, Sources{Status: &fakeStatus{}}, nil)
	resp, e := s.ask("GET", "/v1/healthz", nil, v1.VersionHeader, "2.3", v1.SoftwareHeader, "9.9")
	require.Equal(t, 400, resp.StatusCode)
	require.Equal(t, string(v1.CodeVersion), e.Code)
	for _, part := range []string{"2.3", "9.9", v1.Version, "1.2.3"} {
		require.Contains(t, e.Text, part)
	}
	require.NotEmpty(t, e.Next)
	resp, _ = s.ask("GET", "/v1/healthz", nil, v1.VersionHeader, "1.99")
	require.Equal(t, 200, resp.StatusCode)
}

func TestFailuresHaveOneForm(t *testing.T) {
	s := startServer(t, Sources{Status: &fakeStatus{err: errors.New("bpffs is gone")}, Policies: fakePolicies{}}, nil)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code                     v1.Code
		text                     string
	}{
		{"unknown path", "GET", "/v1/nothing", "", 404, v1.CodeNotFound, "no such operation"},
		{"outside the base", "GET", "/endpoint", "", 404, v1.CodeNotFound, "no such operation"},
		{"wrong method", "PATCH", "/v1/healthz", "", 404, v1.CodeNotFound, "PATCH"},
		{"a source that is not there yet", "GET", "/v1/ip", "", 503, v1.CodeNotReady, "ipcache"},
		{"an ordinary error", "GET", "/v1/map", "", 500, v1.CodeInternal, "bpffs is gone"},
		{"a parameter that is no number", "GET", "/v1/rule/abc", "", 400, v1.CodeInvalid, "id"},
		{"a number that is too big", "GET", "/v1/rule/4294967296", "", 400, v1.CodeInvalid, "id"},
		{"no rule of the number", "GET", "/v1/rule/7", "", 404, v1.CodeNotFound, "7"},
		{"broken JSON", "POST", "/v1/ipam", "{", 400, v1.CodeInvalid, "JSON"},
		{"no body", "POST", "/v1/ipam", "", 400, v1.CodeInvalid, "JSON"},
		{"a wrong type names the field", "POST", "/v1/ipam", `{"owner":"a","expires":"yes"}`, 400, v1.CodeInvalid, "expires"},
		{"a missing parameter names it", "GET", "/v1/why?from=a/b", "", 400, v1.CodeInvalid, "to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			resp, e := s.ask(c.method, c.path, strings.NewReader(c.body))
			require.Equal(t, c.status, resp.StatusCode)
			require.Equal(t, string(c.code), e.Code)
			require.Contains(t, e.Text, c.text)
			require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		})
	}
}

func TestAPanicBecomesAFailureAndTheServerGoesOn(t *testing.T) {
	f := &fakeStatus{status: func(context.Context) gen.Status { panic("broken thing") }}
	s := startServer(t, Sources{Status: f}, nil)
	resp, e := s.ask("GET", "/v1/healthz", nil)
	require.Equal(t, 500, resp.StatusCode)
	require.Equal(t, string(v1.CodeInternal), e.Code)
	require.Contains(t, e.Text, "broken thing")
	require.Contains(t, s.logs.String(), "server_test.go", "the stack is not in the log")
	resp, _ = s.ask("GET", "/v1/config", nil)
	require.Equal(t, 200, resp.StatusCode)
}

// endless gives bytes for ever.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return copy(b, bytes.Repeat([]byte("x"), len(b))), nil }

func TestABodyBeyondTheLimitIsRefusedBeforeAHandlerRuns(t *testing.T) {
	editor := &fakeEditor{}
	s := startServer(t, Sources{Editor: editor}, nil)
	resp, e := s.ask("POST", "/v1/ipam", bytes.NewReader(make([]byte, maxBody+1)))
	require.Equal(t, 413, resp.StatusCode)
	require.Equal(t, string(v1.CodeTooLarge), e.Code)
	resp, e = s.ask("PUT", "/v1/policy", io.LimitReader(endless{}, maxPolicyBody+10)) // chunked
	require.Equal(t, 413, resp.StatusCode)
	require.Equal(t, string(v1.CodeTooLarge), e.Code)
	require.Zero(t, editor.applied)
	resp, _ = s.ask("PUT", "/v1/policy", io.LimitReader(endless{}, maxBody+10))
	require.Equal(t, 200, resp.StatusCode, "a policy may be larger than other bodies")
	require.Equal(t, maxBody+10, editor.applied)
}

func TestARequestThatTakesTooLongIsAnsweredWithTimeout(t *testing.T) {
	f := &fakeIPAM{allocate: func(ctx context.Context, _ LeaseRequest) (gen.Lease, error) {
		<-ctx.Done()
		return gen.Lease{}, ctx.Err()
	}}
	s := startServer(t, Sources{IPAM: f}, func(c *Config) { c.RequestTimeout = 20 * time.Millisecond })
	resp, e := s.ask("POST", "/v1/ipam", strings.NewReader(`{"owner":"c:eth0"}`))
	require.Equal(t, 504, resp.StatusCode)
	require.Equal(t, string(v1.CodeTimeout), e.Code)
}

func TestStopLetsRequestsFinishAndEndsStreams(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := &fakeStatus{status: func(context.Context) gen.Status {
		close(entered)
		<-release
		return gen.Status{Verdict: gen.StateOk, Summary: "finished"}
	}}
	s := startServer(t, Sources{Status: f, Events: &fakeEvents{}}, nil)
	stream, err := s.client.Get("http://localhost/v1/monitor")
	require.NoError(t, err)
	defer stream.Body.Close()
	answer := make(chan int, 1)
	go func() {
		resp, err := s.client.Get("http://localhost/v1/healthz")
		if err != nil {
			answer <- 0
			return
		}
		resp.Body.Close()
		answer <- resp.StatusCode
	}()
	<-entered
	s.stop()
	_, err = io.ReadAll(stream.Body) // returns once the server ends the stream
	require.NoError(t, err)
	close(release)
	require.Equal(t, 200, <-answer)
	require.NoError(t, <-s.ended)
	require.NoFileExists(t, s.path)
}
