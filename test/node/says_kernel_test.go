package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// weirIn runs the command weir inside the node, which asks its agent.
func weirIn(t *testing.T, b *box.Box, words ...string) (int, string) {
	t.Helper()
	return run(t, b, nodeCommand(t, append([]string{box.Binary(t, "weir"), "--socket", b.Socket()}, words...)...))
}

func TestN50StatusEndsWithWhatIsBrokenOnANode(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, _, _ := trio(t, env)
	says := func(what string, code int, words ...string) {
		t.Helper()
		var got int
		var out string
		defer func() {
			if t.Failed() {
				t.Logf("%s: weir status ends with %d: %s", what, got, out)
			}
		}()
		b.Eventually(what, func() bool {
			got, out = weirIn(t, b, "status", "--wait", "30s")
			for _, w := range words {
				if !strings.Contains(out, w) {
					return false
				}
			}
			return got == code
		})
	}
	says("all is well", 0, "all is well")

	if code, out := weirIn(t, b, "endpoint", "audit", "pod-name:"+web.Key(), "on"); code != 0 {
		t.Fatal(out)
	}
	says("audit", 1, "audit: warning: endpoint ", "(x/web)", "\n  breaks enforcement, since ", "\n  next: weir endpoint audit ")
	since := func() string { c, _ := component(t, b, "audit"); return c.Since.String() }
	began := since()
	says("audit is told again", 1, "audit: warning: ")
	if again := since(); again != began {
		t.Errorf("audit began at %s, and later at %s", began, again)
	}
	if code, out := weirIn(t, b, "endpoint", "audit", "pod-name:"+web.Key(), "off"); code != 0 {
		t.Fatal(out)
	}
	says("after audit", 0, "all is well")

	b.Add(lab.Pod{Namespace: "x", Name: "unknown"})
	says("a pod without labels", 1, "no-labels: warning: endpoint ", "(x/unknown)", "breaks pods")
	b.Write("unknown.yaml", box.PodYAML("x", "unknown", "role=late", ""))
	says("its object came", 0, "all is well")

	b.Write("names.yaml", ciliumYAML("named", "web", "ingress: [{toPorts: [{ports: [{port: nowhere}]}]}]"))
	says("a port name that nobody gives", 0, "port-names: warning: ", "breaks nothing, since ", "next: ")
	b.Remove("names.yaml")
	says("without it", 0, "all is well")

	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	if code, out := weirIn(t, b, "status"); code != 2 || !strings.Contains(out, "start weir-agent") {
		t.Errorf("without an agent weir status ends with %d: %s", code, out)
	}
	if code, out := weirIn(t, b, "status", "--wait", "100ms"); code != 2 {
		t.Errorf("after a wait in vain weir status ends with %d: %s", code, out)
	}
	restart(t, b)
	says("after a restart", 0, "all is well")
}

func TestN51AuditAndBrokenFilesAreToldAsTheyAre(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, _ := trio(t, env)
	line := func(p *lab.AttachedPod) []string {
		_, out := weirIn(t, b, "endpoint", "list")
		for _, l := range strings.Split(out, "\n") {
			if f := strings.Fields(l); len(f) > 9 && f[1] == p.Key() {
				return f
			}
		}
		t.Fatalf("%s is not listed: %s", p.Key(), out)
		return nil
	}
	// ID POD IDENTITY IPV4 IPV6 STATE MODE AUDIT INGRESS EGRESS REVISION REASON
	if f := line(web); f[7] != "-" || f[8] != "enforced" || f[9] != "open" {
		t.Errorf("without audit mode: %v", f)
	}
	if code, out := weirIn(t, b, "endpoint", "audit", "pod-name:"+web.Key(), "on"); code != 0 {
		t.Fatal(out)
	}
	if f := line(web); f[7] != "on" || f[8] != "audited" || f[9] != "open" {
		t.Errorf("in audit mode: %v", f)
	}
	if f := line(client); f[7] != "-" || f[8] != "open" {
		t.Errorf("another endpoint: %v", f)
	}
	if _, out := weirIn(t, b, "endpoint", "get", "pod-name:"+web.Key()); !strings.Contains(out, "audit           on: ") || !strings.Contains(out, "ingress audited") {
		t.Errorf("weir endpoint get does not show audit mode: %s", out)
	}
	if e := endpointOf(t, b, web); e.Policy.Ingress != gen.Audited {
		t.Errorf("the API tells %s", e.Policy.Ingress)
	}

	b.Write("new.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: new, namespace: x}\nspec: {podSelectr: {}}\n")
	var held gen.Component
	b.Eventually("the new file is told of", func() bool {
		held, _ = component(t, b, "source-held")
		return strings.Contains(held.Message, "new.yaml")
	})
	if !strings.Contains(held.Message, "new.yaml:4: ") || !strings.HasSuffix(held.Subject, "new.yaml") || held.Breaks != gen.BreaksEnforcement ||
		!strings.Contains(held.Message, "of the file") || strings.Contains(held.Message, "web.yaml") {
		t.Errorf("one broken new file is told as %+v", held)
	}
}

func TestN52EveryChangeLeavesALineInTheLog(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, _ := trio(t, env)
	weir := func(words ...string) (pid int) {
		t.Helper()
		cmd := nodeCommand(t, append([]string{box.Binary(t, "weir"), "--socket", b.Socket()}, words...)...)
		if code, out := run(t, b, cmd); code != 0 {
			t.Fatalf("weir %v: %s", words, out)
		}
		return cmd.ProcessState.Pid()
	}
	expect := func(when string, count int, parts ...string) {
		t.Helper()
		var text []byte
		b.Eventually(when, func() bool {
			var err error
			if text, err = os.ReadFile(b.LogFile()); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, l := range strings.Split(string(text), "\n") {
				all := strings.Contains(l, "level=INFO msg=Change ")
				for _, p := range parts {
					all = all && strings.Contains(l, p)
				}
				if all {
					n++
				}
			}
			return n == count
		})
	}
	expect("pods are leased addresses", 3, `who="uid 0" pid=`, `action="address lease" what="10.78.`)
	expect("pods are attached", 1, `who="uid 0" pid=`, `action="endpoint create" what="endpoint `, "(x/web) 10.78.", " revision=")
	expect("the start", 1, "who=file action=source", "read at the start", "NetworkPolicy x/web", "Pod x/client")

	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(webOnly, "name: web,", "name: put,")), 0o600); err != nil {
		t.Fatal(err)
	}
	by := func(pid int) string { return fmt.Sprintf(`who="uid 0" pid=%d `, pid) }
	expect("apply", 1, by(weir("policy", "apply", file)), `action="policy apply" what="NetworkPolicy x/put" revision=`)
	expect("delete", 1, by(weir("policy", "delete", "NetworkPolicy", "x/put")), `action="policy delete" what="NetworkPolicy x/put" revision=`)
	expect("audit on", 1, by(weir("endpoint", "audit", "pod-name:"+web.Key(), "on")), `action="endpoint settings"`, `(x/web): audit on" revision=`)
	expect("audit off", 1, by(weir("endpoint", "audit", "pod-name:"+web.Key(), "off")), `(x/web): audit off" revision=`)
	expect("enforcement", 1, by(weir("endpoint", "enforcement", "pod-name:"+web.Key(), "always")), `(x/web): enforcement always" revision=`)
	b.Write("more.yaml", strings.ReplaceAll(webOnly, "name: web,", "name: more,"))
	expect("a new file", 1, "who=file action=source", "more.yaml: put NetworkPolicy x/more", " revision=")
	b.Remove("more.yaml")
	expect("a file that went", 1, "who=file action=source", "more.yaml: taken away NetworkPolicy x/more", " revision=")
	if _, err := b.Agent.DeletePolicy(t.Context(), "NetworkPolicy", "x", "nobody"); err == nil {
		t.Error("a policy that is not there is deleted")
	}
	expect("what was refused", 1, by(os.Getpid()), `what="NetworkPolicy x/nobody"`, "error=")
	detach(t, b, client)
	expect("a pod that went", 1, `action="endpoint delete" what="container `+client.ContainerID)
}

// output is what a command that runs has written so far.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestN62MonitorTellsPacketsByTheirNames(t *testing.T) {
	env := testutils.Kernel(t)
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Hosts: []lab.Host{outHost("ext", 9)}, Files: map[string]string{
		"pods.yaml": box.PodYAML("x", "web", "app=web", "http=80") + box.PodYAML("x", "stranger", "role=other", ""), "web.yaml": webOnly,
	}})
	web, stranger, ext := only4(addPod(b, "x", "web", http80)), only4(addPod(b, "x", "stranger")), only4(hostEnds(b, http80)["ext"])
	soon, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if code, out := run(t, b, exec.CommandContext(soon, box.Binary(t, "weir"), "--socket", b.Socket(), "monitor", "--endpoint", "4000")); code != 2 || !strings.Contains(out, "no endpoint answers to 4000") || !strings.Contains(out, "weir endpoint list") {
		t.Errorf("a monitor of an endpoint that is not there ends with %d: %s", code, out)
	}

	var out, errOut output
	cmd := nodeCommand(t, box.Binary(t, "weir"), "--socket", b.Socket(), "monitor")
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := b.Node().Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() error { ended = true; cmd.Process.Signal(os.Interrupt); return cmd.Wait() }
	t.Cleanup(func() {
		if !ended {
			_ = end()
		}
		if t.Failed() {
			t.Logf("the monitor printed\n%s%s", out.String(), errOut.String())
		}
	})
	denied := func() (lines []string) {
		for _, l := range strings.Split(out.String(), "\n") {
			if strings.Contains(l, " TCP ") && strings.Contains(l, " (x/stranger) -> ") && strings.Contains(l, ":80 (x/web)") {
				lines = append(lines, l)
			}
		}
		return lines
	}
	told := func(before int) func() bool {
		return func() bool { return stops(b, stranger, web, http80) && len(denied()) > before }
	}
	b.Eventually("a denied packet is told", told(0))
	b.Eventually("a packet to the outside is told with the name of the world", func() bool {
		return passes(b, stranger, ext, http80) && strings.Contains(out.String(), ":80 (world-ipv4)")
	})

	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	b.Eventually("it says that the agent went away", func() bool { return strings.Contains(errOut.String(), "the agent went away") })
	restart(t, b)
	b.Eventually("it says that the agent is back", func() bool { return strings.Contains(errOut.String(), "the agent is back") })
	b.Eventually("events are told again", told(len(denied())))
	if err := end(); err != nil {
		t.Errorf("interrupted it ends with %v", err)
	}
	ports := map[string]bool{}
	for _, l := range denied() {
		source := strings.Fields(strings.SplitAfter(l, " TCP ")[1])[0]
		if ports[source] || !strings.Contains(l, " drop ") || !strings.Contains(l, "; egress allows: ") {
			t.Errorf("a denied packet has no line of its own, or not one alone: %s", l)
		}
		ports[source] = true
	}
}
