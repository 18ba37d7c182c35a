package box

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/lab"
)

// Options of a box. The zero value is a dual-stack node without pods.
type Options struct {
	BPFRoot    string            // directory on a bpffs of this test, as testutils.Kernel gives it
	Files      map[string]string // YAML by file name
	AgentFlags []string          // beside those that Start sets; a later flag wins
	Hosts      []lab.Host        // outside
	IPv4, IPv6 string            // pools; empty: 10.78.0.0/16 and fd00:78::/112; "none": no such family
}

// Box is a running node.
type Box struct {
	*lab.Lab
	Agent  *client.Client
	Source string // folder of YAML

	t     testing.TB
	serve sync.WaitGroup
	ctx   context.Context
	close func()
}

// Start brings a node up and registers its end with the test.
func Start(t testing.TB, o Options) *Box {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "weir-box-") // short: a unix socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &Box{Source: filepath.Join(dir, "source"), t: t}
	if err := os.Mkdir(b.Source, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range o.Files {
		b.Write(name, text)
	}
	cfg := lab.Config{
		Dir: filepath.Join(dir, "lab"), SourceDir: b.Source, BPFRoot: filepath.Join(o.BPFRoot, "node"), NodeName: "box",
		Agent: Binary(t, "weir-agent"), Plugin: Binary(t, "weir-cni"), Hosts: o.Hosts, Ready: WaitReady,
	}
	for _, pool := range []struct{ flag, given, usual string }{{"ipv4-pool", o.IPv4, "10.78.0.0/16"}, {"ipv6-pool", o.IPv6, "fd00:78::/112"}} {
		switch pool.given {
		case "":
			pool.given = pool.usual
		case "none":
			pool.given = ""
		}
		cfg.AgentFlags = append(cfg.AgentFlags, "--"+pool.flag+"="+pool.given)
		if p, err := netip.ParsePrefix(pool.given); err == nil {
			cfg.NodeAddrs = append(cfg.NodeAddrs, p.Addr().Next())
		}
	}
	cfg.AgentFlags = append(cfg.AgentFlags, o.AgentFlags...)
	if b.Lab, err = lab.Up(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	b.Agent = client.New(b.Socket(), "test")
	ctx, cancel := context.WithCancel(context.Background())
	b.ctx = ctx
	b.close = sync.OnceFunc(func() {
		cancel()
		b.serve.Wait()
		b.Agent.Close()
		if t.Failed() {
			t.Logf("end of the agent's log:\n%s", tail(b.LogFile(), 40))
		}
		if err := b.Down(context.Background()); err != nil {
			t.Errorf("taking the box down: %v", err)
		}
	})
	t.Cleanup(b.close)
	return b
}

// Close takes the box down before the test ends.
func (b *Box) Close() { b.close() }

// Binary is the path of one of the project's binaries.
func Binary(t testing.TB, name string) string {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(self), "..", "..", "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run make build first", err)
	}
	return path
}

// WaitReady waits up to 30 seconds until the agent behind a socket is ready.
func WaitReady(socket string) error { return client.WaitReady(context.Background(), socket, "test") }

// Write puts a file into the source folder, whole or not at all. An empty text takes
// it away: an agent does not take an empty file for a deletion.
func (b *Box) Write(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.Source, name)
	if text == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			b.t.Fatal(err)
		}
		return
	}
	if err := atomicfile.Write(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Remove takes a file out of the source folder.
func (b *Box) Remove(name string) {
	b.t.Helper()
	if err := os.Remove(filepath.Join(b.Source, name)); err != nil {
		b.t.Fatal(err)
	}
}

// PodYAML is a Pod object with labels "k=v,..." and named TCP ports "name=port,...".
func PodYAML(namespace, name, labels, ports string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n  namespace: %s\n  labels:\n    pod: %s\n", name, namespace, name)
	for _, kv := range split(labels) {
		fmt.Fprintf(&s, "    %s: %q\n", kv[0], kv[1])
	}
	s.WriteString("spec:\n  containers:\n  - name: c\n    image: i\n")
	if ports != "" {
		s.WriteString("    ports:\n")
	}
	for _, kv := range split(ports) {
		fmt.Fprintf(&s, "    - {name: %s, containerPort: %s}\n", kv[0], kv[1])
	}
	return s.String() + "---\n"
}

func split(list string) (out [][2]string) {
	for _, word := range strings.Split(list, ",") {
		if k, v, ok := strings.Cut(word, "="); ok {
			out = append(out, [2]string{k, v})
		}
	}
	return out
}

// Add attaches a pod and serves its ports until the test ends.
func (b *Box) Add(p lab.Pod) *lab.AttachedPod {
	b.t.Helper()
	a, err := b.AddPod(b.t.Context(), p)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Serve(a.Netns, p.Ports...)
	return a
}

// Serve answers on ports inside a namespace until the test ends.
func (b *Box) Serve(ns lab.Netns, ports ...lab.Port) {
	b.t.Helper()
	if err := lab.ServePorts(b.ctx, &b.serve, ns, ports); err != nil {
		b.t.Fatal(err)
	}
}

// Try sends one probe from a namespace's address to a target and returns nil if
// it was answered.
func (b *Box) Try(from lab.Netns, src netip.Addr, dst netip.Addr, port lab.Port) error {
	b.t.Helper()
	r := []lab.Result{{
		From: lab.Source{Netns: from},
		Flow: lab.Flow{Proto: port.Proto, Src: netip.AddrPortFrom(src, 0), Dst: netip.AddrPortFrom(dst, port.Port)},
	}}
	if err := lab.SendProbes(b.t.Context(), r, lab.ProbeOptions{}); err != nil {
		b.t.Fatal(err)
	}
	return r[0].Err
}

// noPods is a policy for no pod of any box; see Settle.
const noPods = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: settle, namespace: of-no-box}
spec: {podSelector: {}}
`

// Settle waits until the agent has read all that was written to the folder
// before, and every endpoint has realized it. A policy that comes and goes
// through the API makes the agent read the folder, and the answer is the revision
// that has both.
func (b *Box) Settle() {
	b.t.Helper()
	var revision uint64
	b.Eventually("the folder is read", func() bool {
		if _, err := b.Agent.PutPolicy(b.t.Context(), "settle.yaml", []byte(noPods)); err != nil {
			return false
		}
		gone, err := b.Agent.DeletePolicy(b.t.Context(), "NetworkPolicy", "of-no-box", "settle")
		revision = gone.Revision
		return err == nil
	})
	b.Eventually("what was taken away is gone", func() bool {
		list, err := b.Agent.Sources(b.t.Context())
		return err == nil && !slices.ContainsFunc(list.Sources, leaving)
	})
	b.Eventually(fmt.Sprintf("revision %d is realized", revision), func() bool {
		rev, err := b.Agent.PolicyRevision(b.t.Context())
		return err == nil && rev.Revision >= revision && rev.Realized >= rev.Revision
	})
}

// leaving reports whether objects of a source are in force that are about to go.
func leaving(s gen.Source) bool {
	return s.State != gen.SourceHeld && slices.ContainsFunc(s.Files, func(f gen.SourceFile) bool {
		return f.State == gen.SourceGone || f.State == gen.SourceWaiting && !f.LastGood.IsZero()
	}) && !slices.ContainsFunc(s.Files, func(f gen.SourceFile) bool { return f.State == gen.SourceBroken || f.State == gen.SourceNever })
}

// InForce waits until the folder as it is now is in force: that many policies,
// realized by every endpoint.
func (b *Box) InForce(policies int) {
	b.t.Helper()
	b.Settle()
	b.Eventually(fmt.Sprintf("%d policies in force", policies), func() bool {
		list, err := b.Agent.Policies(b.t.Context())
		if err != nil || len(list.Policies) != policies {
			return false
		}
		rev, err := b.Agent.PolicyRevision(b.t.Context())
		return err == nil && rev.Revision >= list.Revision && rev.Realized >= rev.Revision
	})
}

// Eventually waits up to 10 seconds for a condition.
func (b *Box) Eventually(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within 10 seconds", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func tail(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
