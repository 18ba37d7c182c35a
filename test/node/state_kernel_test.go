package node

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/testutils"
)

// Every file of state, damaged in every way (WEIR_SOAK) or in some: the agent starts,
// nothing is lost, nothing is let through, and what is damaged is told until it is removed.
func TestN25DamagedStateIsSetAsideToldAndMadeAnew(t *testing.T) {
	env := testutils.Kernel(t)
	w := newTown(t, env)
	w.talking()
	restarts := 0
	for i, file := range w.stateFiles() {
		for j, how := range damages {
			record := strings.HasSuffix(file, "endpoint.json")
			if os.Getenv("WEIR_SOAK") == "" && !record && (i+j)%4 != 0 || record && os.Getenv("WEIR_SOAK") == "" && j%2 == 1 {
				continue
			}
			what := strings.TrimPrefix(file, w.Dir()) + " " + how
			isState := false
			w.restartWith(what, func() { isState = isJSON(file); damage(t, file, how) })
			restarts++
			if isState && how != "removed" && how != "newer" && !w.told(file) {
				t.Errorf("%s: it is not told", what)
			}
			if how == "directory" && !w.told(file) {
				t.Errorf("%s: it is not told", what)
			}
			w.addOne(what)
			w.tidy()
			if w.told(file) {
				t.Errorf("%s: it is told after it was removed", what)
			}
		}
	}
	w.still("over damaged state")
	t.Logf("%d restarts", restarts)
}

// An endpoint whose record is gone, or whose record and everything else of the state
// directory is gone, or whose pins are gone, keeps what it has, and the next pod gets
// nothing of it.
func TestN02TheNumberOfAnOrphanGoesToNobodyElse(t *testing.T) {
	env := testutils.Kernel(t)
	w := newTown(t, env)
	w.talking()
	state := filepath.Join(w.Dir(), "run", "state")
	pin := func(name string) string { return filepath.Join(env.BPFRoot, "node", "maps", name) }
	remove := func(paths ...string) func() {
		return func() {
			for _, p := range paths {
				if err := os.RemoveAll(p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, c := range []struct {
		what   string
		damage func()
	}{
		{"all records removed", remove(filepath.Join(state, "endpoints"))},
		{"the state directory removed", remove(state)},
		{"state and identities removed", remove(state, filepath.Join(w.Dir(), "data", "identities.json"))},
		{"the pin of weir_policy removed", remove(pin("weir_policy"))},
		{"the pins of weir_lxc and weir_epconfig removed", remove(pin("weir_lxc"), pin("weir_epconfig"))},
		{"all pins of maps and the state directory removed", remove(filepath.Dir(pin("x")), state)},
	} {
		w.restartWith(c.what, c.damage)
		w.addOne(c.what)
	}
	w.still("over lost state")
}

// Two kinds of state lost at once: all pairs (WEIR_SOAK), or some at random.
func TestN02NoPairOfLossesGivesAnADDWhatALivingLinkHas(t *testing.T) {
	env := testutils.Kernel(t)
	w := newTown(t, env)
	w.talking()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	things := func() []string {
		out := w.stateFiles()
		for _, name := range []string{"weir_policy", "weir_lxc", "weir_epconfig", "weir_ipcache"} {
			out = append(out, filepath.Join(env.BPFRoot, "node", "maps", name))
		}
		return out
	}
	try := func(a, b, howA, howB string) {
		what := fmt.Sprintf("%s %s and %s %s", filepath.Base(a), howA, filepath.Base(b), howB)
		w.restartWith(what, func() {
			for _, x := range [][2]string{{a, howA}, {b, howB}} {
				if strings.HasPrefix(x[0], env.BPFRoot) {
					x[1] = "removed"
				}
				damage(t, x[0], x[1])
			}
		})
		w.addOne(what)
		w.tidy()
	}
	ways := []string{"removed", "garbage"}
	rounds := 8
	if os.Getenv("WEIR_SOAK") != "" {
		rounds = 200
		all := things()
		for i := range all {
			for j := range i {
				for _, h := range ways {
					for _, g := range ways {
						try(all[i], all[j], h, g)
					}
				}
			}
		}
	}
	for range rounds {
		all := things()
		i, j := random.IntN(len(all)), random.IntN(len(all))
		try(all[i], all[j], ways[random.IntN(2)], ways[random.IntN(2)])
	}
	w.still("over pairs of losses")
}

// What was set aside is shown, with the command that removes it, over restarts.
func TestN53WhatWasSetAsideIsShownUntilItIsRemoved(t *testing.T) {
	env := testutils.Kernel(t)
	w := newTown(t, env)
	w.talking()
	leases := filepath.Join(w.Dir(), "run", "state", "leases.json")
	w.restartWith("leases damaged", func() { damage(t, leases, "garbage") })
	for range 2 {
		w.restartWith("again", func() {})
		if !w.told(leases) {
			t.Error("what was set aside is not shown after another restart")
		}
	}
	w.tidy()
	if w.told(leases) {
		t.Error("what was removed is still shown")
	}
	w.still("while something was set aside")
}

// A link that somebody renames is the same link.
func TestN09ARenamedLinkKeepsItsEndpoint(t *testing.T) {
	env := testutils.Kernel(t)
	w := newTown(t, env)
	w.talking()
	name := ""
	for _, e := range w.endpoints() {
		if e.Pod.Name == "web" {
			name = e.Interface.HostName
		}
	}
	for _, to := range []string{"renamed0", name} {
		from := map[bool]string{true: name, false: "renamed0"}[to == "renamed0"]
		if code, out := run(t, w.Box, nodeCommand(t, "ip", "link", "set", from, "name", to)); code != 0 {
			t.Fatal(out)
		}
		w.restartWith("the link of the web pod is "+to, func() {})
	}
	w.still("over renames")
}

// A second agent on the same pins is refused, whatever else it has of its own.
func TestN10ASecondAgentOnTheSamePinsIsRefused(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	before := quiet(t, b)
	dir := t.TempDir()
	for _, verb := range []string{"", "cleanup"} {
		args := []string{"--run-dir", filepath.Join(dir, "r"), "--data-dir", filepath.Join(dir, "d"), "--bpf-root", b.Record.BPFRoot, "--cni-conf-dir", filepath.Join(dir, "c")}
		if verb != "" {
			args = append([]string{verb}, args...)
		}
		code, out := run(t, b, nodeCommand(t, append([]string{b.Record.Agent}, args...)...))
		if code == 0 {
			t.Errorf("weir-agent %s ran on the same bpffs root", verb)
		}
		mentions(t, "its error", out, "in use by another agent", fmt.Sprint(b.Record.AgentPID), "--bpf-root", b.Dir())
	}
	expect(t, b, "after a second agent", web, client, stranger)
	settles(t, b, before, "after a second agent")
}

// Directories that others may write into are tightened, those of others refused.
func TestN11DirectoriesOfOthersAreTightenedOrRefused(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	state := filepath.Join(b.Dir(), "run", "state")
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{state, b.Record.BPFRoot} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	restart(t, b)
	for _, dir := range []string{state, b.Record.BPFRoot} {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s is %v, %v", dir, info.Mode(), err)
		}
	}
	if err := b.KillAgent(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{state, b.Record.BPFRoot} {
		if err := os.Chown(dir, 12345, -1); err != nil {
			t.Fatal(err)
		}
		code, out := run(t, b, nodeCommand(t, append([]string{b.Record.Agent}, b.Record.AgentArgs...)...))
		if code == 0 {
			t.Errorf("the agent ran in a directory of user 12345")
		}
		mentions(t, "its error", out, dir, "12345")
		if err := os.Chown(dir, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	restart(t, b)
	b.Eventually("all endpoints ready", allReady(t, b, 3))
	expect(t, b, "at the end", web, client, stranger)
}

// Clean-up takes the links that are marked as Weir's, and no others of such names.
func TestN56CleanUpRemovesOnlyWhatIsOurs(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, _, _ := trio(t, env)
	const foreign = "lxc0123456789ab"
	if code, out := run(t, b, nodeCommand(t, "ip", "link", "add", foreign, "type", "veth", "peer", "name", "other0")); code != 0 {
		t.Fatal(out)
	}
	eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
	if err != nil || len(eps) != 3 {
		t.Fatal(err)
	}
	for i, e := range eps { // one of them as a build without marks left it, and one renamed
		if i == 0 {
			run(t, b, nodeCommand(t, "ip", "link", "set", e.Interface.HostName, "alias", ""))
		} else if code, out := run(t, b, nodeCommand(t, "ip", "link", "show", e.Interface.HostName)); code != 0 || !strings.Contains(out, "alias weir id="+fmt.Sprint(e.ID)) {
			t.Errorf("the link of endpoint %d is not marked: %s", e.ID, out)
		}
	}
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	cleanup := func(flags ...string) string {
		args := append(append([]string{b.Record.Agent, "cleanup"}, flags...), b.Record.AgentArgs...)
		code, out := run(t, b, nodeCommand(t, args...))
		if code != 0 {
			t.Fatalf("clean-up: %s", out)
		}
		return out
	}
	links := func() string { _, out := run(t, b, nodeCommand(t, "ip", "-o", "link")); return out }
	before := links()
	out := cleanup("--dry-run")
	mentions(t, "the dry run", out, "not link "+foreign, b.Record.BPFRoot, "route to "+web.Addresses[0].String())
	for _, e := range eps {
		mentions(t, "the dry run", out, "link "+e.Interface.HostName)
	}
	if after := links(); after != before {
		t.Errorf("a dry run changed links: before\n%safter\n%s", before, after)
	}
	cleanup()
	after := links()
	for _, e := range eps {
		if strings.Contains(after, e.Interface.HostName) {
			t.Errorf("link %s of endpoint %d is left", e.Interface.HostName, e.ID)
		}
	}
	if !strings.Contains(after, foreign) {
		t.Error("clean-up removed a link of somebody else")
	}
	for _, dir := range []string{"run", "data"} {
		if _, err := os.Stat(filepath.Join(b.Dir(), dir)); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}
