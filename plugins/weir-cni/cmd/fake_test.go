package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
	"github.com/weirnet/weir/pkg/endpoint/id"
)

// envKill names a step of ADD at which the plugin kills itself with SIGKILL.
const envKill = "WEIR_CNI_TEST_KILL"

// TestMain makes the test binary the plugin when it is started under its name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "weir-cni" {
		p := &plugin{version: "test", links: kernel{}, stdout: os.Stdout, stderr: os.Stderr}
		if step := os.Getenv(envKill); step != "" {
			p.links = mortal{step}
		}
		os.Exit(p.main())
	}
	os.Exit(m.Run())
}

// mortal dies before or after a step on links.
type mortal struct{ step string }

func (m mortal) at(step string) {
	if m.step == step {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
}
func (m mortal) create(ctx context.Context, n *podNetns, v veth) (veth, error) {
	m.at("before create")
	v, err := kernel{}.create(ctx, n, v)
	m.at("after create")
	return v, err
}
func (m mortal) configure(ctx context.Context, n *podNetns, v veth, addrs []netip.Addr) error {
	err := kernel{}.configure(ctx, n, v, addrs)
	m.at("after configure")
	return err
}
func (m mortal) leftover(ctx context.Context, n *podNetns, hostName, podName string) (veth, bool, error) {
	return kernel{}.leftover(ctx, n, hostName, podName)
}
func (m mortal) remove(ctx context.Context, hostName string, index int) error {
	return kernel{}.remove(ctx, hostName, index)
}

// fakeAgent answers the API on a real socket and keeps leases and endpoints.
type fakeAgent struct {
	t      *testing.T
	runDir string

	mu        sync.Mutex
	next      int
	leases    map[string]gen.Lease // by owner
	endpoints map[string]gen.Endpoint
	requests  []endpointapi.Request
	asked     []api.LeaseRequest
	health    gen.EndpointHealth
	ready     bool
	state     gen.EndpointState        // of new endpoints
	families  string                   // "4", "6" or "46"
	onPut     func(containerID string) // called before an endpoint is made
	fail      error                    // of a PUT
	failLease error
	stop      func()
}

// endpointHandlers has another name than api.Handlers, so that both can be embedded.
type endpointHandlers = endpointapi.Handlers

func newAgent(t *testing.T) *fakeAgent {
	f := &fakeAgent{t: t, runDir: filepath.Join(t.TempDir(), "run"), leases: map[string]gen.Lease{}, endpoints: map[string]gen.Endpoint{},
		health: gen.EndpointHealth{Overall: gen.StateOk, Bpf: gen.StateOk, Policy: gen.StateOk, Connected: true}, ready: true, state: gen.EndpointReady, families: "46"}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

// start serves; after stop it may be called again, like an agent's restart.
func (f *fakeAgent) start() {
	server := api.NewServer(api.Config{Path: f.socket(), Logger: slog.New(slog.DiscardHandler), Software: "test", Handlers: struct {
		*api.Handlers
		*endpointHandlers
	}{api.NewHandlers(api.Sources{Status: f, IPAM: (*fakeIPAM)(f)}, "test"), endpointapi.NewHandlers(f, f, f)}})
	require.NoError(f.t, server.Listen())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = server.Serve(ctx); close(ended) }()
	f.stop = func() { cancel(); <-ended }
}

func (f *fakeAgent) socket() string { return filepath.Join(f.runDir, socketName) }

func (f *fakeAgent) Status(context.Context) gen.Status {
	s := gen.Status{Ready: f.ready, Verdict: gen.StateOk, Summary: "fine"}
	if !f.ready {
		s.Verdict, s.Summary = gen.StateStarting, "the datapath is not loaded"
		s.Components = []gen.Component{{Name: "datapath", State: gen.StateStarting, Next: "wait for clang"}}
	}
	return s
}
func (f *fakeAgent) Config(context.Context) gen.Config           { return gen.Config{Mtu: 1450} }
func (f *fakeAgent) Maps(context.Context) ([]gen.MapInfo, error) { return nil, nil }
func (f *fakeAgent) Log(id.Ref) ([]gen.LogEntry, bool)           { return nil, false }
func (f *fakeAgent) Timeline(id.Ref) ([]gen.Station, bool)       { return nil, false }
func (f *fakeAgent) Health(_ context.Context, ref id.Ref) (gen.EndpointHealth, bool) {
	_, ok := f.Endpoint(ref)
	return f.health, ok
}

func (f *fakeAgent) Endpoints() (out []gen.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.endpoints {
		out = append(out, e)
	}
	return out
}

func (f *fakeAgent) Endpoint(ref id.Ref) (gen.Endpoint, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.endpoints[ref.Text]
	return e, ok
}

func (f *fakeAgent) Create(_ context.Context, r endpointapi.Request) (gen.Endpoint, bool, error) {
	if f.onPut != nil {
		f.onPut(r.ContainerID)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r)
	if f.fail != nil {
		return gen.Endpoint{}, false, f.fail
	}
	if e, ok := f.endpoints[r.Key()]; ok && e.Interface.HostIndex == r.HostIfIndex {
		return e, false, nil
	}
	f.next++
	e := gen.Endpoint{ID: uint16(f.next), State: f.state, ContainerID: r.ContainerID, Network: r.Network, Netns: r.Netns,
		Interface: gen.Interface{HostName: r.HostIfName, HostIndex: r.HostIfIndex, ContainerName: r.IfName, Mac: r.MAC.String(), HostMac: r.HostMAC.String()},
		Pod:       gen.PodRef{Namespace: r.PodNamespace, Name: r.PodName, UID: r.PodUID}}
	e.Policy.Ingress, e.Policy.Egress = gen.Open, gen.Open
	if r.IPv4.IsValid() {
		e.Addressing.Ipv4 = r.IPv4.String()
	}
	if r.IPv6.IsValid() {
		e.Addressing.Ipv6 = r.IPv6.String()
	}
	f.endpoints[r.Key()] = e
	return e, true, nil
}

func (f *fakeAgent) Counters(id.Ref) ([]gen.RuleCounter, bool, error) { return nil, false, nil }

func (f *fakeAgent) Change(_ context.Context, ref id.Ref, s gen.EndpointSettings) (gen.Endpoint, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.endpoints[ref.Text]
	if ok {
		e.Network = s.Network
		f.endpoints[ref.Text] = e
	}
	return e, ok, nil
}

func (f *fakeAgent) Delete(context.Context, id.Ref) (bool, []error) {
	return false, []error{errors.New("not used")}
}

func (f *fakeAgent) DeleteContainer(_ context.Context, containerID, ifName string, only endpointapi.Only) (n int, _ []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := containerID + ":" + ifName
	if !only.Means(f.endpoints[key].Interface.HostIndex, time.Time{}) {
		return 0, nil
	}
	if _, ok := f.endpoints[key]; ok {
		n++
	}
	delete(f.endpoints, key)
	delete(f.leases, key)
	return n, nil
}

// left describes what the agent still holds; empty for nothing.
func (f *fakeAgent) left() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for k := range f.leases {
		out = append(out, "lease "+k)
	}
	for k := range f.endpoints {
		out = append(out, "endpoint "+k)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// fakeIPAM is the leases' side of the agent.
type fakeIPAM fakeAgent

func (f *fakeIPAM) Allocate(_ context.Context, r api.LeaseRequest) (gen.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r)
	if f.failLease != nil {
		return gen.Lease{}, f.failLease
	}
	f.next++
	l := gen.Lease{ID: fmt.Sprint("lease-", f.next), Owner: r.Owner, Pool: "default"}
	if strings.Contains(f.families, "4") {
		l.Ipv4 = netip.AddrFrom4([4]byte{10, 9, byte(f.next >> 8), byte(f.next)}).String()
	}
	if strings.Contains(f.families, "6") {
		l.Ipv6 = fmt.Sprintf("fd00::%x", f.next)
	}
	for _, a := range r.Requested {
		if a.Is4() {
			l.Ipv4 = a.String()
		} else {
			l.Ipv6 = a.String()
		}
	}
	f.leases[r.Owner] = l
	return l, nil
}

func (f *fakeIPAM) Release(_ context.Context, addr netip.Addr, lease string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, l := range f.leases {
		if (l.Ipv4 == addr.String() || l.Ipv6 == addr.String()) && (lease == "" || l.ID == lease) {
			delete(f.leases, k)
		}
	}
	return nil
}
func (f *fakeIPAM) Leases(context.Context) gen.IPAMStatus { return gen.IPAMStatus{} }

// exhausted is the failure of a full pool as the daemon gives it.
func exhausted() error {
	return v1.Errorf(v1.CodeExhausted, "enlarge the pool", "pool default exhausted: 254 of 254")
}
