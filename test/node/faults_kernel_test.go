package node

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
	"github.com/weirnet/weir/test/box"
)

// mentions checks that a text holds every word.
func mentions(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s does not say %q: %s", what, w, text)
		}
	}
}

func TestABadADDIsRefusedAndLeavesNothing(t *testing.T) {
	env := testutils.Kernel(t)
	b := manyPods(t, env.BPFRoot)
	before := quiet(t, b)
	p := prepare(t, b, "churn", 0)
	gone := filepath.Join(t.TempDir(), "gone")
	for _, c := range []struct {
		what, netns, config string
		words               []string
	}{
		{"JSON that ends early", "", `{"cniVersion":"1.0.0"`, []string{"unexpected end of JSON", "mend the CNI configuration"}},
		{"a field of the wrong type", "", `{"cniVersion":"1.0.0","name":"weir","type":"weir-cni","mtu":"big"}`, []string{"mtu", "mend the CNI configuration"}},
		{"another plugin's ipam", "", `{"cniVersion":"1.0.0","name":"weir","type":"weir-cni","ipam":{"type":"host-local"}}`, []string{"ipam.type", "remove ipam"}},
		{"a socket that is not there", "", `{"cniVersion":"1.0.0","name":"weir","type":"weir-cni","runDir":"/run/weir-none"}`, []string{"the agent is not running", "start weir-agent"}},
		{"a namespace path that is not there", gone, "", []string{gone, "sandbox still exists"}},
		{"the node's own namespace", string(b.Node()), "", []string{"own network namespace"}},
	} {
		netns := c.netns
		if netns == "" {
			netns = string(p.Netns)
		}
		cmd := pluginCommand(t, b, "ADD", p.ContainerID, netns, p.Key())
		if c.config != "" {
			cmd.Stdin = strings.NewReader(c.config)
		}
		code, out := run(t, b, cmd)
		if code == 0 {
			t.Errorf("%s is taken: %s", c.what, out)
		}
		mentions(t, c.what, out, c.words...)
	}
	removeAll(t, b, []*lab.AttachedPod{p})
	settles(t, b, before, "after bad ADDs")
}

func TestAnADDWithoutAnAgentSaysSoAndLeavesNothing(t *testing.T) {
	env := testutils.Kernel(t)
	b := manyPods(t, env.BPFRoot)
	before := quiet(t, b)
	p := prepare(t, b, "churn", 0)
	cmd := pluginCommand(t, b, "ADD", p.ContainerID, string(p.Netns), p.Key())
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	code, out := run(t, b, cmd)
	if code == 0 {
		t.Error("an ADD without an agent is answered")
	}
	mentions(t, "the error", out, "the agent is not running", "start weir-agent")
	restart(t, b)
	removeAll(t, b, []*lab.AttachedPod{p})
	settles(t, b, before, "after an ADD without an agent")
}

func TestAddressesThatCannotBeHad(t *testing.T) {
	env := testutils.Kernel(t)
	var pods strings.Builder
	for i := range 10 {
		pods.WriteString(box.PodYAML("x", fmt.Sprintf("small-%d", i), "", ""))
	}
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, IPv4: "10.79.0.0/29", IPv6: "none", Files: map[string]string{"pods.yaml": pods.String()}})
	first := prepare(t, b, "small", 0, netip.MustParseAddr("10.79.0.3"))
	attach(t, b, first)
	before := quiet(t, b)
	for _, c := range []struct {
		addr  string
		words []string
	}{{"10.79.0.3", []string{"10.79.0.3", "in use"}}, {"10.80.0.3", []string{"10.80.0.3", "ask for an address"}}} {
		p := prepare(t, b, "small", 1, netip.MustParseAddr(c.addr))
		err := b.Attach(t.Context(), p)
		if err == nil {
			t.Fatalf("%s is given", c.addr)
		}
		mentions(t, "the error", fmt.Sprintf("%+v", err), c.words...)
		removeAll(t, b, []*lab.AttachedPod{p})
		settles(t, b, before, "after asking for "+c.addr)
	}
	var err error
	held := 1
	for i := 2; i < 10 && err == nil; i++ {
		before = quiet(t, b)
		p := prepare(t, b, "small", i)
		if err = b.Attach(t.Context(), p); err == nil {
			held++
			continue
		}
		removeAll(t, b, []*lab.AttachedPod{p})
		settles(t, b, before, "after the pool was exhausted")
	}
	if err == nil {
		t.Fatal("a pool of 8 addresses has no end")
	}
	mentions(t, "the error", err.Error(), fmt.Sprintf("%d of %d", held, held))
	detach(t, b, first) // and the address returns
	attach(t, b, prepare(t, b, "small", 1))
}

// component finds a part of the status that is not well; one that is not told of is well.
func component(t *testing.T, b *box.Box, name string) (gen.Component, gen.Status) {
	t.Helper()
	s, err := b.Agent.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Components {
		if c.Name == name {
			return c, s
		}
	}
	return gen.Component{Name: name, State: gen.StateOk}, s
}

// weirStatus is what "weir status" prints and its exit code.
func weirStatus(t *testing.T, b *box.Box) (int, string) {
	t.Helper()
	return run(t, b, nodeCommand(t, box.Binary(t, "weir"), "--socket", b.Socket(), "status"))
}

func TestABadFileLeavesTheLastGoodVersionInForce(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	whole := func(want string) {
		t.Helper()
		b.Eventually("the status says "+want, func() bool {
			_, out := weirStatus(t, b)
			return strings.Contains(out, want)
		})
	}
	b.Write("web.yaml", strings.Replace(webOnly, "  podSelector: {matchLabels: {pod: web}}\n", "  podSelector: {matchLabels: {pod: web}}\n  podSelectr: {}\n", 1))
	whole("web.yaml:")
	_, out := weirStatus(t, b)
	if !regexp.MustCompile(`web\.yaml:[1-9][0-9]*: .*podSelectr`).MatchString(out) || !strings.Contains(out, "next: ") {
		t.Errorf("the status names no line, field or next step: %s", out)
	}
	expect(t, b, "with a bad file", web, client, stranger)

	// The other files still apply.
	b.Write("free.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: more, namespace: x}\nspec:\n  podSelector: {matchLabels: {pod: web}}\n  ingress: [{from: [{podSelector: {matchLabels: {role: other}}}]}]\n")
	b.Eventually("the stranger reaches the web pod by the other file", func() bool { all, _ := reaches(b, stranger, web, http80); return all })
	b.Remove("free.yaml")
	b.Eventually("the stranger is denied again", func() bool { _, any := reaches(b, stranger, web, http80); return !any })

	b.Write("web.yaml", webOnly)
	whole("all is well")

	// A file that cannot be read: root may read everything, so it leads nowhere.
	path := filepath.Join(b.Source, "web.yaml")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("web.yaml", path); err != nil {
		t.Fatal(err)
	}
	whole("web.yaml")
	expect(t, b, "with an unreadable file", web, client, stranger)
}

func TestAPolicyThatSelectsNothingChangesNothing(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	before := facts(t, b)
	b.Write("nobody.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: nobody, namespace: x}\nspec: {podSelector: {matchLabels: {pod: nobody}}, policyTypes: [Ingress, Egress]}\n")
	b.Eventually("the policy is listed", func() bool {
		_, err := b.Agent.Policy(t.Context(), "NetworkPolicy", "x", "nobody")
		return err == nil
	})
	b.Eventually("all endpoints ready", allReady(t, b, 3))
	expect(t, b, "with a policy that selects nothing", web, client, stranger)
	if after := facts(t, b); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
	if code, out := weirStatus(t, b); code != 0 {
		t.Errorf("the status is not well: %s", out)
	}
}

func TestASecondAgentIsRefused(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	before := quiet(t, b)
	code, out := run(t, b, nodeCommand(t, append([]string{b.Record.Agent}, b.Record.AgentArgs...)...))
	if code == 0 {
		t.Error("a second agent ran on the same state directory")
	}
	mentions(t, "its error", out, "in use by another agent", fmt.Sprint(b.Record.AgentPID), "--state-dir")
	expect(t, b, "after a second agent", web, client, stranger)
	settles(t, b, before, "after a second agent")
}

// What denies goes into a map that is too small first; what allows as far as it has room.
func TestAPolicyThatDoesNotFitItsMapStillDenies(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, AgentFlags: []string{"--policy-entries=64"}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "app=web", "http=80") + box.PodYAML("x", "client", "role=client", ""), "web.yaml": webOnly,
	}})
	all := []lab.Port{http80}
	for i := range 40 {
		all = append(all, lab.Port{Proto: types.ProtoTCP, Port: uint16(2001 + 2*i)})
	}
	web := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: all})
	client := b.Add(lab.Pod{Namespace: "x", Name: "client"})
	if all, _ := reaches(b, client, web, http80); !all {
		t.Fatal("the client does not reach the web pod at first")
	}
	overfull := func(denied int) string {
		var ports, deny strings.Builder
		for i, p := range all {
			fmt.Fprintf(&ports, "{port: %q, protocol: TCP}, ", fmt.Sprint(p.Port))
			if i < denied {
				fmt.Fprintf(&deny, "{port: %q, protocol: TCP}, ", fmt.Sprint(p.Port))
			}
		}
		return "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: many, namespace: x}\nspec:\n  endpointSelector: {matchLabels: {pod: web}}\n" +
			"  ingress: [{fromEndpoints: [{}], toPorts: [{ports: [" + ports.String()[:strings.LastIndex(ports.String(), "{")] + "]}]}]\n" +
			"  ingressDeny: [{fromEndpoints: [{}], toPorts: [{ports: [" + deny.String() + "]}]}]\n"
	}
	degraded := func(want string) {
		b.Eventually("the endpoint is degraded: "+want, func() bool {
			c, s := component(t, b, "policy-map")
			list, err := b.Agent.Endpoints(t.Context(), nil, nil)
			return err == nil && c.State == gen.StateFailing && s.Verdict == gen.StateFailing && s.Endpoints.Degraded == 1 &&
				slices.ContainsFunc(list, func(e gen.Endpoint) bool { return strings.Contains(e.Policy.DegradedReason, want) })
		})
	}
	count := func() (reached int) { // in both families
		return strings.Count(letters(t, b, podSource(client), "web", web.Addresses, all...), lab.CellAllowed)
	}
	b.Write("web.yaml", overfull(3)) // 80 and two more are denied
	degraded("of its lines that allow are left out")
	if _, any := reaches(b, client, web, http80); any {
		t.Error("a denied port is let through")
	}
	if n := count(); n == 0 || n > 2*37 {
		t.Errorf("%d cells are let through", n)
	}
	code, out := weirStatus(t, b)
	if code != 1 {
		t.Errorf("weir status: exit code %d", code)
	}
	mentions(t, "weir status", out, "policy-map", "policy-entries", "next: ")

	b.Write("web.yaml", overfull(40)) // not even what denies has room
	degraded("everything is denied")
	if n := count(); n != 0 {
		t.Errorf("%d cells are let through although everything is to be denied", n)
	}
	b.Write("web.yaml", webOnly)
	b.Eventually("the client reaches the web pod again", func() bool { all, _ := reaches(b, client, web, http80); return all })
	b.Eventually("all is well", func() bool { code, out := weirStatus(t, b); return code == 0 && strings.Contains(out, "all is well") })
}

// A request cannot take an interface of the node, or that of another endpoint.
func TestAnEndpointNeedsALinkOfItsOwn(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	of := endpointOf(t, b, web)
	request := func(name string, index int) error {
		_, _, err := b.Agent.PutEndpoint(t.Context(), gen.EndpointRequest{
			ContainerID: "other", Netns: string(web.Netns), Labels: map[string]string{"a": "b"}, Sync: true, TimeoutSeconds: 5,
			Interface:  gen.Interface{HostName: name, HostIndex: index, ContainerName: "eth0", Mac: "02:00:00:00:00:01", HostMac: "02:00:00:00:00:02"},
			Addressing: gen.Addressing{Ipv4: "10.78.0.77"},
		})
		return err
	}
	for what, err := range map[string]error{
		"the loopback":       request("lo", 1),
		"no link":            request("lxc-none", 99999),
		"a taken link":       request(of.Interface.HostName, of.Interface.HostIndex),
		"under another name": request("lxc-other", of.Interface.HostIndex),
	} {
		if err == nil {
			t.Errorf("an endpoint on %s is made", what)
		}
	}
	expect(t, b, "after the refusals", web, client, stranger)
}
