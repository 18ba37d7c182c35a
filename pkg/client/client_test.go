package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
)

// validator checks every request and answer against the spec.
type validator struct {
	t      *testing.T
	next   http.RoundTripper
	router routers.Router
	seen   map[string]bool // operation ids that were answered below 300
}

func newValidator(t *testing.T, next http.RoundTripper) *validator {
	doc, err := openapi3.NewLoader().LoadFromData(v1.Spec)
	require.NoError(t, err)
	doc.Servers = openapi3.Servers{{URL: "http://localhost" + v1.Base}}
	router, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	for _, kind := range []string{"application/yaml", "application/x-ndjson"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
	return &validator{t: t, next: next, router: router, seen: map[string]bool{}}
}

func (v *validator) RoundTrip(r *http.Request) (*http.Response, error) {
	route, params, err := v.router.FindRoute(r)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL, err)
	}
	in := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}
	if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
		return nil, fmt.Errorf("the request differs from the spec: %w", err)
	}
	resp, err := v.next.RoundTrip(r)
	if err != nil || route.Operation.OperationID == "getMonitor" && resp.StatusCode == 200 {
		v.seen[route.Operation.OperationID] = err == nil
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header}
	out.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(r.Context(), out); err != nil {
		return nil, fmt.Errorf("the answer differs from the spec: %w\n%s", err, body)
	}
	if resp.StatusCode < 300 {
		v.seen[route.Operation.OperationID] = true
	}
	return resp, nil
}

// agent serves the fakes on a real socket; the client's traffic is validated.
func agent(t *testing.T) (*Client, *validator, string) {
	path := filepath.Join(t.TempDir(), "run", "weir.sock")
	serve(t, path)
	c := New(path, "test")
	t.Cleanup(c.Close)
	v := newValidator(t, c.conns)
	c.api.Client = &http.Client{Transport: v}
	return c, v, path
}

func serve(t *testing.T, path string) (stop func()) {
	s := api.NewServer(api.Config{Path: path, Handlers: newHandlers(), Logger: slog.New(slog.DiscardHandler), Software: "9.9"})
	require.NoError(t, s.Listen())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = s.Serve(ctx); close(done) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

func TestEveryOperationAgreesWithTheSpecInBothDirections(t *testing.T) {
	c, v, _ := agent(t)
	ctx := t.Context()
	ok := func(err error) { t.Helper(); require.NoError(t, err) }

	s, err := c.Status(ctx)
	ok(err)
	require.Equal(t, [2]string{"9.9", v1.Version}, [2]string{s.Version, s.APIVersion})
	conf, err := c.Config(ctx)
	ok(err)
	require.Equal(t, 1450, conf.Mtu)
	maps, err := c.Maps(ctx)
	ok(err)
	require.Equal(t, uint64(300), maps.TotalBytes)
	require.Equal(t, "a", maps.Maps[0].Name)

	r := gen.EndpointRequest{ContainerID: "c1", Sync: true, TimeoutSeconds: 5, Addressing: gen.Addressing{Ipv4: "10.0.0.7"},
		Interface: gen.Interface{HostName: "lxc1", HostIndex: 3, ContainerName: "eth0", Mac: "02:00:00:00:00:01", HostMac: "02:00:00:00:00:02"}}
	e, created, err := c.PutEndpoint(ctx, r)
	ok(err)
	require.True(t, created)
	require.Equal(t, uint16(5), e.ID)
	_, created, err = c.PutEndpoint(ctx, r)
	ok(err)
	require.False(t, created)
	list, err := c.Endpoints(ctx, []string{"k8s:app=web"}, []gen.EndpointState{gen.EndpointReady})
	ok(err)
	require.Len(t, list, 1)
	list, err = c.Endpoints(ctx, nil, nil)
	ok(err)
	require.Len(t, list, 1)
	for _, ref := range []string{"5", "pod-name:shop/web", AttachmentID("c1", "eth0"), "ipv6:fd00::7"} {
		_, err = c.Endpoint(ctx, ref)
		ok(err)
	}
	_, err = c.EndpointLog(ctx, "5")
	ok(err)
	_, err = c.EndpointCounters(ctx, "5")
	ok(err)
	_, err = c.EndpointTimeline(ctx, "5")
	ok(err)
	_, err = c.EndpointHealth(ctx, "5")
	ok(err)
	on := true
	e, err = c.ChangeEndpoint(ctx, "5", gen.EndpointSettings{Audit: &on})
	ok(err)
	require.True(t, e.Policy.Audit)
	e, err = c.ChangeEndpoint(ctx, "5", gen.EndpointSettings{Enforcement: gen.EnforcementNever})
	ok(err)
	require.Equal(t, gen.EnforcementNever, e.Policy.Enforcement)
	require.False(t, e.Policy.Audit)
	_, err = c.DeleteContainer(ctx, "c1", "eth0")
	ok(err)
	_, err = c.DeleteContainer(ctx, "c1", "")
	ok(err)
	_, err = c.DeleteEndpoint(ctx, "5")
	ok(err)

	ids, err := c.Identities(ctx, []string{"app=web"})
	ok(err)
	require.Equal(t, []gen.Identity{{ID: 1001, Labels: []string{"k8s:app=web"}, References: 2, Scope: "global"}}, ids)
	_, err = c.Identity(ctx, 1001)
	ok(err)
	ps, err := c.Policies(ctx)
	ok(err)
	require.Len(t, ps.Policies, 2)
	require.NotNil(t, ps.Policies[1].Rules[0].Peers)
	_, err = c.Policy(ctx, "NetworkPolicy", "shop", "allow")
	ok(err)
	_, err = c.Policy(ctx, "CiliumClusterwideNetworkPolicy", "", "all")
	ok(err)
	rev, err := c.PolicyRevision(ctx)
	ok(err)
	require.Equal(t, gen.PolicyRevision{Revision: 4, Realized: 3}, rev)
	change, err := c.PutPolicy(ctx, "my policy.yaml", []byte("kind: NetworkPolicy\n"))
	ok(err)
	require.Equal(t, "my policy.yaml", change.Policies[0].File)
	_, err = c.DeletePolicy(ctx, "NetworkPolicy", "shop", "allow")
	ok(err)
	val, err := c.ValidatePolicy(ctx, "", []byte("kind: X\n"))
	ok(err)
	require.False(t, val.Valid)
	rule, err := c.Rule(ctx, 12)
	ok(err)
	require.Equal(t, gen.RulePolicy, rule.Kind)
	require.Zero(t, *rule.Index)
	ips, err := c.IPs(ctx, gen.ListIPsParams{})
	ok(err)
	require.Len(t, ips, 2)
	one := "10.0.0.7"
	_, err = c.IPs(ctx, gen.ListIPsParams{IP: &one})
	ok(err)
	why, err := c.Why(ctx, "shop/web", "10.0.0.9", "80", "")
	ok(err)
	require.Equal(t, gen.VerdictDeny, why.Verdict)
	require.Nil(t, why.Ingress)
	require.Equal(t, gen.SaysDeny, why.Egress.Rule.Says)
	require.Equal(t, "it passed", why.Egress.Losers[0].Why)
	require.Equal(t, gen.SaysPass, why.Egress.Losers[0].Says)
	require.Equal(t, "with it", why.Egress.Changes[0].Text)
	require.True(t, why.Egress.Changes[0].Alone)
	_, err = c.IPAM(ctx)
	ok(err)
	lease, err := c.Lease(ctx, gen.IPAMRequest{Owner: "c1:eth0", Expires: true})
	ok(err)
	require.Equal(t, "l1", lease.ID)
	ok(c.Release(ctx, netip.MustParseAddr("fd00::7"), "l1"))

	folders, err := c.Sources(ctx)
	ok(err)
	require.Equal(t, "/etc/weir/objects", folders.Sources[0].Path)
	folder, err := c.AcceptSource(ctx, "/etc/weir/objects")
	ok(err)
	require.Equal(t, gen.SourceGood, folder.State)

	watch, stop := context.WithCancel(ctx)
	var got []gen.Event
	port := uint16(80)
	ok(c.Monitor(watch, gen.GetMonitorParams{Type: []gen.EventType{gen.EventDrop}, Port: &port}, nil, func(e gen.Event) error {
		got = append(got, e)
		stop()
		return nil
	}))
	require.Equal(t, uint32(12), got[0].Rule.ID)

	doc, err := openapi3.NewLoader().LoadFromData(v1.Spec)
	ok(err)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			require.True(t, v.seen[op.OperationID], "%s %s was not tried", method, path)
		}
	}
}

func TestFailuresOfTheAgentComeThroughWithCodeAndNextStep(t *testing.T) {
	c, _, _ := agent(t)
	_, err := c.Endpoint(t.Context(), "77")
	require.Equal(t, v1.CodeNotFound, v1.CodeOf(err))
	require.ErrorContains(t, err, "weir endpoint list")
	_, err = c.Endpoint(t.Context(), "cep-name:x")
	require.Equal(t, v1.CodeInvalid, v1.CodeOf(err))
	stop := errors.New("enough")
	require.Equal(t, stop, c.Monitor(t.Context(), gen.GetMonitorParams{}, nil, func(gen.Event) error { return stop }))
}

func TestTheClientTellsWhyTheAgentCannotBeAsked(t *testing.T) {
	dir := t.TempDir()
	ask := func(path string) error {
		c := New(path, "test", WithTimeout(200*time.Millisecond))
		defer c.Close()
		_, err := c.Status(t.Context())
		return err
	}
	err := ask(filepath.Join(dir, "none.sock"))
	require.Equal(t, v1.CodeUnreachable, v1.CodeOf(err))
	require.ErrorContains(t, err, "is not there")

	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: dead})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	err = ask(dead)
	require.Equal(t, v1.CodeUnreachable, v1.CodeOf(err))
	require.ErrorContains(t, err, "nobody listens")

	mute, err := net.Listen("unix", filepath.Join(dir, "mute.sock"))
	require.NoError(t, err)
	defer mute.Close()
	err = ask(mute.Addr().String())
	require.Equal(t, v1.CodeTimeout, v1.CodeOf(err))

	err = New("", "test").explain("x", os.ErrPermission)
	require.Equal(t, v1.CodePermission, v1.CodeOf(err))
	require.ErrorContains(t, err, "run as root")
}

func TestAnAgentOfAnotherMajorVersionIsRefusedWithBothVersions(t *testing.T) {
	for name, c := range map[string]struct {
		header map[string]string
		want   []string
	}{
		"another major":   {map[string]string{v1.VersionHeader: "2.0", v1.SoftwareHeader: "5.0.1"}, []string{"2.0", "5.0.1", v1.Version, "same release"}},
		"no weir agent":   {nil, []string{"no weir agent"}},
		"a broken header": {map[string]string{v1.VersionHeader: "latest"}, []string{"latest"}},
	} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range c.header {
				w.Header().Set(k, v)
			}
			io.WriteString(w, `{"ready":true}`)
		}))
		client := New(path, "test")
		_, err = client.Status(t.Context())
		require.Equal(t, v1.CodeVersion, v1.CodeOf(err), name)
		for _, part := range c.want {
			require.ErrorContains(t, err, part, name)
		}
		client.Close()
		l.Close()
	}
}

func TestDeletionIsAnsweredOrQueuedButNeverLost(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(run, "weir.sock")
	c := New(path, "test")
	defer c.Close()
	log := slog.New(slog.DiscardHandler)
	replay := func(q *api.DeleteQueue) (seen []string) {
		_, err := q.Drain(t.Context(), func(_ context.Context, r v1.QueuedDelete) error {
			seen = append(seen, r.ContainerID+" "+r.Interface)
			return nil
		}, func() {})
		require.NoError(t, err)
		return seen
	}
	// Down: queued once, however often it is asked.
	for range 3 {
		queued, err := c.DeleteOrQueue(t.Context(), run, "c1", "eth0")
		require.NoError(t, err)
		require.True(t, queued)
	}
	q := api.NewDeleteQueue(run, log)
	require.Equal(t, []string{"c1 eth0"}, replay(q))

	// Up: answered.
	stop := serve(t, path)
	queued, err := c.DeleteOrQueue(t.Context(), run, "c2", "eth0")
	require.NoError(t, err)
	require.False(t, queued)
	stop()

	// Down again: the next start finds it.
	queued, err = c.DeleteOrQueue(t.Context(), run, "c3", "eth1")
	require.NoError(t, err)
	require.True(t, queued)
	require.Equal(t, []string{"c3 eth1"}, replay(q))
	require.Empty(t, replay(q))
}

func TestTheQueueIsBounded(t *testing.T) {
	run := t.TempDir()
	dir := filepath.Join(run, v1.QueueDir)
	require.NoError(t, os.Mkdir(dir, 0o750))
	known := v1.QueuedDelete{Version: 1, ContainerID: "known", Interface: "eth0"}
	require.NoError(t, enqueue(dir, known))
	for i := range v1.QueueEntries {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i, v1.QueueSuffix)), nil, 0o600))
	}
	require.ErrorIs(t, enqueue(dir, v1.QueuedDelete{Version: 1, ContainerID: "new"}), ErrQueueFull)
	require.NoError(t, enqueue(dir, known), "a request that is there already needs no entry")
	text, err := os.ReadFile(filepath.Join(dir, known.FileName()))
	require.NoError(t, err)
	var back v1.QueuedDelete
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, known.ContainerID, back.ContainerID)
	left, err := filepath.Glob(filepath.Join(dir, v1.QueueTemp+"*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.True(t, strings.HasSuffix(known.FileName(), v1.QueueSuffix))
}
