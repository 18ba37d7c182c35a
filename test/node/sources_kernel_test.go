package node

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

const web2 = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: other, namespace: x}\nspec: {podSelector: {matchLabels: {pod: nobody}}}\n"

// wrongWays break the source of web.yaml and pods.yaml: of a file, or the folder.
var wrongWays = []struct {
	name   string
	do     func(folder string) error
	folder bool
	mend   func(folder string) error // of a folder
}{
	{name: "broken YAML", do: writes("apiVersion: v1\nname: [web\n")},
	{name: "an unknown field", do: writes(strings.Replace(webOnly, "podSelector", "podSelektor", 1))},
	{name: "a mistake in another object of the file", do: writes(webOnly + strings.Replace(web2, "podSelector", "podSelektor", 1))},
	{name: "0 bytes", do: writes("")},
	{name: "a link to itself", do: instead(func(p string) error { return os.Symlink(filepath.Base(p), p) })},
	{name: "a pipe", do: instead(func(p string) error { return unix.Mkfifo(p, 0o600) })},
	{name: "an empty folder", folder: true, do: func(dir string) error {
		if err := os.Rename(filepath.Join(dir, "web.yaml"), dir+".web"); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "pods.yaml"), dir+".pods")
	}, mend: func(dir string) error {
		if err := os.Rename(dir+".pods", filepath.Join(dir, "pods.yaml")); err != nil {
			return err
		}
		return os.Rename(dir+".web", filepath.Join(dir, "web.yaml"))
	}},
	{name: "a folder moved away", folder: true, do: func(dir string) error { return os.Rename(dir, dir+".away") }, mend: func(dir string) error { return os.Rename(dir+".away", dir) }},
	{name: "a file in the folder's place", folder: true, do: func(dir string) error {
		if err := os.Rename(dir, dir+".away"); err != nil {
			return err
		}
		return os.WriteFile(dir, nil, 0o600)
	}, mend: back},
	{name: "a link to another folder", folder: true, do: func(dir string) error {
		if err := os.Rename(dir, dir+".away"); err != nil {
			return err
		}
		if err := os.MkdirAll(dir+".other", 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir+".other", "web.yaml"), []byte(strings.TrimPrefix(web2, "---\n")), 0o600); err != nil {
			return err
		}
		return os.Symlink(dir+".other", dir)
	}, mend: back},
}

func back(dir string) error {
	if err := os.Remove(dir); err != nil {
		return err
	}
	return os.Rename(dir+".away", dir)
}

func writes(text string) func(string) error {
	return func(dir string) error { return os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600) }
}

func instead(by func(string) error) func(string) error {
	return func(dir string) error {
		path := filepath.Join(dir, "web.yaml")
		if err := os.Remove(path); err != nil {
			return err
		}
		return by(path)
	}
}

// watched is traffic to the web pod that must go on and traffic that must not begin.
type watched struct {
	t            *testing.T
	sink         *sink
	stopHammer   func() int
	flow         func() (int, error)
	web, ally, x *lab.AttachedPod
}

func watchTraffic(t *testing.T, b *box.Box, web, client, stranger *lab.AttachedPod) *watched {
	t.Helper()
	w := &watched{t: t, web: web, ally: client, x: stranger}
	w.sink = newSink(t, web.Netns, udp9)
	w.stopHammer = hammer(t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], udp9))
	w.flow = talk(t, client.Netns, netip.AddrPortFrom(web.Addresses[0], 80))
	return w
}

func (w *watched) end(when string) {
	w.t.Helper()
	if words, err := w.flow(); err != nil || words < 5 {
		w.t.Errorf("%s: the allowed flow: %d words, %v", when, words, err)
	}
	if sent, got := w.stopHammer(), w.sink.close(); sent == 0 || got != 0 {
		w.t.Errorf("%s: %d of %d denied datagrams arrived", when, got, sent)
	}
}

// again ends the agent as asked and starts the next one after the change.
func again(t *testing.T, b *box.Box, how string, change func() error) {
	t.Helper()
	var err error
	switch how {
	case "kill -9":
		err = b.KillAgent()
	case "SIGTERM":
		err = b.StopAgent()
	}
	if err == nil {
		err = change()
	}
	if err != nil {
		t.Fatal(err)
	}
	if how != "while running" {
		restart(t, b)
	}
}

// held waits until the status says that a source is held and names the way out.
func held(t *testing.T, b *box.Box, when, code, word string) {
	t.Helper()
	var out string
	b.Eventually(when+": weir status tells", func() bool {
		var rc int
		rc, out = weirIn(t, b, "status")
		return rc == 1 && strings.Contains(out, code)
	})
	mentions(t, when, out, word)
}

func isWell(t *testing.T, b *box.Box, when string) {
	t.Helper()
	var out string
	deadline := time.Now().Add(15 * time.Second)
	for {
		var rc int
		if rc, out = weirIn(t, b, "status"); rc == 0 && !strings.Contains(out, "source-") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not well: %s", when, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestN01ASourceThatCannotBeReadOpensNothing(t *testing.T) {
	env := testutils.Kernel(t)
	pods := box.PodYAML("x", "web", "app=web", "http=80") + box.PodYAML("x", "client", "role=client", "") + box.PodYAML("x", "stranger", "", "") +
		strings.Replace(box.PodYAML("x", "late", "", ""), "pod: late", "pod: web", 1) // one more that the policy selects
	b := box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{"pods.yaml": pods, "web.yaml": webOnly}})
	web := b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	client := b.Add(lab.Pod{Namespace: "x", Name: "client"})
	stranger := b.Add(lab.Pod{Namespace: "x", Name: "stranger"})
	b.InForce(1)
	for i, way := range wrongWays {
		for j, how := range []string{"while running", "kill -9", "SIGTERM"} {
			if j > 0 && j-1 != i%2 && os.Getenv("WEIR_SOAK") == "" {
				continue // of the two ends of an agent one each
			}
			when := way.name + ", " + how
			w := watchTraffic(t, b, web, client, stranger)
			again(t, b, how, func() error { return way.do(b.Source) })
			word := "weir policy validate"
			if way.folder {
				word = "weir source accept " + b.Source
			}
			held(t, b, when, "source-held", word)
			if !way.folder {
				b.Write("free.yaml", strings.ReplaceAll(webOnly, "name: web,", fmt.Sprintf("name: free-%d-%d,", i, j)))
				changed := time.Now()
				b.Eventually(when+": another file is in force", func() bool {
					list, err := b.Agent.Policies(t.Context())
					return err == nil && slices.ContainsFunc(list.Policies, func(p gen.Policy) bool { return p.Ref.Name == fmt.Sprintf("free-%d-%d", i, j) })
				})
				t.Logf("%s: another file is in force after %s", when, time.Since(changed).Round(time.Millisecond))
			}
			if j > 0 { // a pod is added meanwhile
				late, err := b.AddPod(t.Context(), lab.Pod{Namespace: "x", Name: "late"})
				if err != nil {
					t.Fatal(err)
				}
				b.Serve(late.Netns, http80)
				b.Eventually(when+": the client reaches a new pod", func() bool { all, _ := reaches(b, client, late, http80); return all })
				if _, any := reaches(b, stranger, late, http80); any {
					t.Errorf("%s: the stranger reaches a new pod", when)
				}
				if err := b.DelPod(t.Context(), late.Key()); err != nil {
					t.Fatal(err)
				}
			}
			w.end(when)
			if way.folder {
				if err := way.mend(b.Source); err != nil {
					t.Fatal(err)
				}
			} else {
				b.Write("free.yaml", "")
				os.Remove(filepath.Join(b.Source, "web.yaml"))
				b.Write("web.yaml", webOnly)
			}
			isWell(t, b, when+", mended")
		}
	}
	b.InForce(1)
}

// After a reboot nothing is left but the durable directory.
func TestN01AfterARebootTheLastGoodVersionsHold(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	put := strings.ReplaceAll(strings.ReplaceAll(webOnly, "name: web,", "name: api,"), "pod: web", "pod: stranger")
	if _, err := b.Agent.PutPolicy(t.Context(), "put.yaml", []byte(put)); err != nil {
		t.Fatal(err)
	}
	b.InForce(2)
	for i, way := range wrongWays {
		if i%3 != 0 && os.Getenv("WEIR_SOAK") == "" {
			continue
		}
		reboot(t, b, []*lab.AttachedPod{web, client, stranger}, func() error { return way.do(b.Source) })
		word := "weir policy validate"
		if way.folder {
			word = "weir source accept " + b.Source
		}
		held(t, b, way.name, "source-held", word)
		web = b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
		client = b.Add(lab.Pod{Namespace: "x", Name: "client"})
		stranger = b.Add(lab.Pod{Namespace: "x", Name: "stranger", Ports: []lab.Port{http80}})
		b.Settle()
		expect(t, b, way.name, web, client, stranger)
		if all, _ := reaches(b, client, stranger, http80); !all {
			t.Errorf("%s: the client does not reach the stranger, as the policy of the API says", way.name)
		}
		if _, any := reaches(b, web, stranger, http80); any {
			t.Errorf("%s: the web pod reaches the stranger, which the policy of the API denies", way.name)
		}
		code, out := weirIn(t, b, "policy", "list", "--in-force")
		if code != 0 {
			t.Error(out)
		}
		mentions(t, "the list in force", out, "FILE-STATE", "good")
		if way.folder {
			if err := way.mend(b.Source); err != nil {
				t.Fatal(err)
			}
		} else {
			os.Remove(filepath.Join(b.Source, "web.yaml"))
			b.Write("web.yaml", webOnly)
		}
		isWell(t, b, way.name+", mended")
	}
}

// reboot takes away what dies with a boot, and one copy of a policy of the API, and
// starts the agent after the change.
func reboot(t *testing.T, b *box.Box, pods []*lab.AttachedPod, change func() error) {
	t.Helper()
	for _, p := range pods {
		if err := b.DelPod(t.Context(), p.Key()); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(b.Dir(), "run"), b.Record.BPFRoot, filepath.Join(b.Dir(), "data", "policies", "NetworkPolicy_x_api.yaml")} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := change(); err != nil {
		t.Fatal(err)
	}
	restart(t, b)
}

// What is known to be in force and cannot be read keeps what it selected as it is,
// and lets nothing new in.
func TestN01WhatIsLostKeepsWhatItSelectedAsItIs(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	b.Write("late.yaml", strings.Replace(box.PodYAML("x", "late", "", ""), "pod: late", "pod: web", 1)+strings.Replace(box.PodYAML("x", "later", "", ""), "pod: later", "pod: web", 1)+box.PodYAML("x", "free", "", ""))
	b.InForce(1)
	before := endpointOf(t, b, web)
	w := watchTraffic(t, b, web, client, stranger)
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(b.Dir(), "data", "sources", "web.yaml.*"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	if err := os.Truncate(kept[0], 20); err != nil {
		t.Fatal(err)
	}
	if err := writes("name: [web")(b.Source); err != nil {
		t.Fatal(err)
	}
	restart(t, b)
	b.Eventually("all endpoints ready", allReady(t, b, 3))
	held(t, b, "lost", "source-lost", "NetworkPolicy x/web")
	_, out := weirIn(t, b, "status")
	mentions(t, "weir status", out, web.Key(), "weir source accept "+b.Source)
	if after := endpointOf(t, b, web); after.Policy.Slot != before.Policy.Slot || after.Identity.ID != before.Identity.ID {
		t.Errorf("slot and identity were %d and %d, and are %d and %d", before.Policy.Slot, before.Identity.ID, after.Policy.Slot, after.Identity.ID)
	}
	_, err = b.AddPod(t.Context(), lab.Pod{Namespace: "x", Name: "late"})
	if err == nil {
		t.Fatal("a pod that the lost policy may select is let in")
	}
	mentions(t, "the refusal", fmt.Sprintf("%+v", err), "api.accept", "NetworkPolicy x/web", "since")
	b.Add(lab.Pod{Namespace: "x", Name: "free"})
	b.Write("other.yaml", strings.TrimPrefix(web2, "---\n"))
	b.Settle()
	w.end("lost")

	w = watchTraffic(t, b, web, client, stranger)
	os.Remove(filepath.Join(b.Source, "web.yaml"))
	b.Write("web.yaml", webOnly)
	isWell(t, b, "mended")
	b.Settle()
	w.end("mended")
	b.Add(lab.Pod{Namespace: "x", Name: "later"})
	b.Write("web.yaml", strings.Replace(webOnly, "role: client", "pod: stranger", 1))
	b.Settle()
	if all, _ := reaches(b, stranger, web, http80); !all {
		t.Error("a change is not in force after the source was mended")
	}
}

// Policies of the API: damaged copies, both ways to end, and at a deletion.
func TestN01PoliciesOfTheAPIOutliveTheirFiles(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	if _, err := b.Agent.PutPolicy(t.Context(), "put.yaml", []byte(strings.ReplaceAll(webOnly, "name: web,", "name: api,"))); err != nil {
		t.Fatal(err)
	}
	b.Write("web.yaml", strings.TrimPrefix(web2, "---\n")) // the API alone protects the web pod
	b.InForce(2)
	file := func(dir string) string { return filepath.Join(b.Dir(), "data", dir, "NetworkPolicy_x_api.yaml") }
	for i, damage := range []func(string) error{os.Remove, func(p string) error { return os.Truncate(p, 0) }, func(p string) error { return os.Truncate(p, 120) }, os.RemoveAll} {
		for _, dir := range []string{"policies", "policies.copy"} {
			when := fmt.Sprint("damage ", i, " of ", dir)
			w := watchTraffic(t, b, web, client, stranger)
			again(t, b, []string{"kill -9", "SIGTERM"}[i%2], func() error {
				if i == 3 {
					return damage(filepath.Dir(file(dir)))
				}
				return damage(file(dir))
			})
			b.InForce(2)
			w.end(when)
		}
	}
	if _, err := b.Agent.DeletePolicy(t.Context(), "NetworkPolicy", "x", "api"); err != nil {
		t.Fatal(err)
	}
	again(t, b, "kill -9", func() error { return nil })
	b.InForce(1)
	if all, _ := reaches(b, stranger, web, http80); !all {
		t.Error("a deleted policy is in force again")
	}
}

// At an upgrade, and by hand: the folders below and weir source.
func TestN59FoldersBelowTheSourceAreWatched(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	if err := os.MkdirAll(filepath.Join(b.Source, "team", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.Settle()
	b.Write("team/deep/more.yaml", strings.Replace(strings.ReplaceAll(webOnly, "name: web,", "name: more,"), "role: client", "pod: stranger", 1))
	b.Eventually("what stands below is in force", func() bool { all, _ := reaches(b, stranger, web, http80); return all })
	b.Write("team/deep/more.yaml", "")
	b.Eventually("and gone", func() bool { _, any := reaches(b, stranger, web, http80); return !any })
	if all, _ := reaches(b, client, web, http80); !all {
		t.Error("the client does not reach the web pod")
	}
	code, out := weirIn(t, b, "source", "list")
	if code != 0 {
		t.Error(out)
	}
	mentions(t, "weir source list", out, b.Source, "web.yaml", "good", "LAST-GOOD")
	os.Remove(filepath.Join(b.Source, "web.yaml"))
	os.Remove(filepath.Join(b.Source, "pods.yaml"))
	held(t, b, "emptied", "source-held", "weir source accept "+b.Source)
	if code, out := weirIn(t, b, "source", "accept", b.Source); code != 0 {
		t.Error(out)
	}
	b.InForce(0)
	if text, err := os.ReadFile(b.LogFile()); err != nil || !strings.Contains(string(text), "source accept") {
		t.Errorf("the log has no line of the acceptance (%v)", err)
	}
}
