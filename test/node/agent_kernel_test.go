package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

var http80 = lab.Port{Proto: types.ProtoTCP, Port: 80}

// webOnly lets only pods with role=client reach the web pod.
const webOnly = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: x}
spec:
  podSelector: {matchLabels: {pod: web}}
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]
`

// trio is a node with a web pod, a client that may reach it and a stranger that may not.
func trio(t *testing.T, env *testutils.Env) (b *box.Box, web, client, stranger *lab.AttachedPod) {
	b = box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "app=web", "http=80") + box.PodYAML("x", "client", "role=client", "") + box.PodYAML("x", "stranger", "role=other", ""),
		"web.yaml":  webOnly,
	}})
	web = b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	client = b.Add(lab.Pod{Namespace: "x", Name: "client"})
	stranger = b.Add(lab.Pod{Namespace: "x", Name: "stranger"})
	return b, web, client, stranger
}

// reaches tries from a pod to every address of another.
func reaches(b *box.Box, from, to *lab.AttachedPod, port lab.Port) (all, any bool) {
	all = true
	for i, dst := range to.Addresses {
		passed := b.Try(from.Netns, from.Addresses[i], dst, port) == nil
		all, any = all && passed, any || passed
	}
	return all, any
}

func expect(t *testing.T, b *box.Box, when string, web, client, stranger *lab.AttachedPod) {
	t.Helper()
	if all, _ := reaches(b, client, web, http80); !all {
		t.Errorf("%s: the client does not reach the web pod", when)
	}
	if _, any := reaches(b, stranger, web, http80); any {
		t.Errorf("%s: the stranger reaches the web pod", when)
	}
}

func TestEndpointsAreListedOverTheSocket(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, _, _ := trio(t, env)
	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.Socket())
	}}}
	resp, err := hc.Get("http://localhost/v1/endpoint")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var eps []struct {
		ID         int
		Identity   struct{ ID uint32 }
		Labels     []string
		Addressing struct{ IPv4, IPv6 netip.Addr }
		State      string
		Policy     struct{ Revision uint64 }
	}
	if err := json.NewDecoder(resp.Body).Decode(&eps); err != nil {
		t.Fatal(err)
	}
	if len(eps) != 3 {
		t.Fatalf("%d endpoints are listed, want 3", len(eps))
	}
	e := eps[0]
	if e.ID == 0 || e.Identity.ID < 256 || e.State != "ready" || e.Policy.Revision == 0 || e.Addressing.IPv4 != web.Addresses[0] || e.Addressing.IPv6 != web.Addresses[1] ||
		!strings.Contains(strings.Join(e.Labels, " "), "k8s:app=web") {
		t.Fatalf("the web pod's endpoint is listed as %+v", e)
	}
}

// facts are what must survive a restart.
func facts(t *testing.T, b *box.Box) string {
	t.Helper()
	return factsOf(t, b, func(e gen.Endpoint) uint32 { return e.Identity.ID })
}

// factsOf are the lines of facts with a number of each endpoint in place of its identity's.
func factsOf(t *testing.T, b *box.Box, number func(gen.Endpoint) uint32) string {
	t.Helper()
	eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var s strings.Builder
	for _, e := range eps {
		fmt.Fprintln(&s, e.ID, e.Pod.Name, number(e), e.Addressing, e.ContainerID, e.State)
	}
	return s.String()
}

func allReady(t *testing.T, b *box.Box, n int) func() bool {
	return func() bool {
		eps, err := b.Agent.Endpoints(t.Context(), nil, []gen.EndpointState{gen.EndpointReady})
		return err == nil && len(eps) == n
	}
}

func TestAKilledAgentLeavesPolicyInForceAndComesBackTheSame(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	expect(t, b, "before", web, client, stranger)
	before := facts(t, b)
	for round := range 3 {
		if err := b.KillAgent(); err != nil {
			t.Fatal(err)
		}
		expect(t, b, "while the agent is down", web, client, stranger)
		if err := b.StartAgent(); err != nil {
			t.Fatal(err)
		}
		if err := box.WaitReady(b.Socket()); err != nil {
			t.Fatal(err)
		}
		b.Eventually("all endpoints ready", allReady(t, b, 3))
		if after := facts(t, b); after != before {
			t.Fatalf("round %d: before\n%safter\n%s", round, before, after)
		}
		expect(t, b, "after the restart", web, client, stranger)
	}
	// A change made while no agent runs is in force once one does.
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	b.Remove("web.yaml")
	if err := b.StartAgent(); err != nil {
		t.Fatal(err)
	}
	b.Eventually("the stranger reaches the web pod once its policy is gone", func() bool {
		all, _ := reaches(b, stranger, web, http80)
		return all
	})
}

func TestB37DelToleratesWhatIsGone(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	mustDel := func(what, container, netns string) {
		t.Helper()
		if code, out := run(t, b, pluginCommand(t, b, "DEL", container, netns, "")); code != 0 {
			t.Errorf("DEL %s: exit code %d: %s", what, code, out)
		}
	}
	mustDel("of an unknown container", "nobody", "")
	mustDel("with the namespace missing", client.ContainerID, filepath.Join(t.TempDir(), "gone"))
	mustDel("twice", client.ContainerID, string(client.Netns))
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	mustDel("with the agent stopped", stranger.ContainerID, string(stranger.Netns))
	mustDel("with the agent stopped and no namespace", stranger.ContainerID, "")
	queue := filepath.Join(b.Dir(), "run", "deleteQueue", "*.json")
	if files, _ := filepath.Glob(queue); len(files) == 0 {
		t.Error("nothing was queued while the agent was stopped")
	}
	if err := b.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := box.WaitReady(b.Socket()); err != nil {
		t.Fatal(err)
	}
	if files, _ := filepath.Glob(queue); len(files) != 0 {
		t.Errorf("still queued after the start: %v", files)
	}
	eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(eps) != 1 || eps[0].ContainerID != web.ContainerID {
		t.Errorf("after the deletions %d endpoints are left: %+v", len(eps), eps)
	}
	status, err := b.Agent.IPAM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Leases) != 1 {
		t.Errorf("%d leases are left, want 1: %+v", len(status.Leases), status.Leases)
	}
	if dirs, _ := filepath.Glob(filepath.Join(b.Dir(), "run", "state", "endpoints", "*")); len(dirs) != 1 {
		t.Errorf("records left: %v", dirs)
	}
}
