package filesource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/labels"
)

// policyOf is a policy that isolates the pods of an app.
func policyOf(name string) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: x}\nspec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Ingress]}\n", name, name)
}

// restarted is a source as the next agent makes it; the clock stands where it was.
func restarted(t *testing.T, s *Source) (*Source, *fakeRepository) {
	t.Helper()
	repo := &fakeRepository{policies: map[string][]*policytypesPolicy{}, changed: make(chan struct{}, 1)}
	cfg := s.cfg
	cfg.Policies, cfg.Tables, cfg.Warnings = repo, newTables(t), health.New()
	again := New(cfg)
	again.now = s.now
	return again, repo
}

// have checks which policies are in force.
func have(t *testing.T, when string, repo *fakeRepository, want ...string) {
	t.Helper()
	var got []string
	for id := range repo.policies {
		got = append(got, strings.TrimPrefix(id, "NetworkPolicy/x/"))
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("%s: in force are %q, want %q", when, got, want)
	}
}

// told checks that a warning of the code breaks enforcement and says all words.
func told(t *testing.T, when string, s *Source, code string, words ...string) {
	t.Helper()
	for _, w := range s.cfg.Warnings.List() {
		text := w.Text + "; " + w.Next
		if w.Code == code && w.Breaks == health.BreaksEnforcement && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) }) {
			return
		}
	}
	t.Errorf("%s: no %s that says %q in %+v", when, code, words, s.cfg.Warnings.List())
}

func well(t *testing.T, when string, s *Source) {
	t.Helper()
	if ws := s.cfg.Warnings.List(); len(ws) != 0 {
		t.Errorf("%s: %+v", when, ws)
	}
}

// ways of breaking a source of a.yaml (policies a and b) and c.yaml (policy c), with
// what must be told and how the source is made whole again.
var ways = []struct {
	name   string
	do     func(t *testing.T, dir string)
	words  []string // of the warning
	whole  bool     // the folder as a whole is held: no file of it changes
	mended func(t *testing.T, dir string)
}{
	{name: "broken YAML", do: write("a.yaml", "apiVersion: v1\nname: [web\n"), words: []string{"a.yaml", "stays in force", "weir policy validate"}},
	{name: "an unknown field", do: write("a.yaml", strings.Replace(policyOf("a"), "podSelector", "podSelektor", 1)), words: []string{"podSelektor"}},
	{name: "a mistake in another object of the file", do: write("a.yaml", policyOf("a")+"---\n"+strings.Replace(policyOf("b"), "podSelector", "podSelektor", 1)), words: []string{"podSelektor"}},
	{name: "0 bytes", do: write("a.yaml", ""), words: []string{"remove the file"}},
	{name: "only comments", do: write("a.yaml", "# nothing\n---\n# here\n"), words: []string{"remove the file"}},
	{name: "a link to itself", do: replace("a.yaml", func(p string) error { return os.Symlink("a.yaml", p) }), words: []string{"a.yaml", "weir policy validate"}},
	{name: "a link to nothing", do: replace("a.yaml", func(p string) error { return os.Symlink("none", p) }), words: []string{"a.yaml"}},
	{name: "a pipe", do: replace("a.yaml", func(p string) error { return unix.Mkfifo(p, 0o600) }), words: []string{"a.yaml", "give a file"}},
	{name: "a socket", do: replace("a.yaml", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) }), words: []string{"give a file"}},
	{name: "a folder in the file's place", do: replace("a.yaml", func(p string) error { return os.Mkdir(p, 0o700) }), words: []string{"a.yaml", "give a file"}},
	{name: "a huge file", do: func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "a.yaml"), 1<<40)) }, words: []string{"split it"}},
	{name: "an empty folder", whole: true, words: []string{"holds none of the files", "weir source accept"}, do: func(t *testing.T, dir string) {
		remove(t, dir, "a.yaml")
		remove(t, dir, "c.yaml")
	}, mended: func(t *testing.T, dir string) { fill(t, dir) }},
	{name: "a folder that is not there", whole: true, words: []string{"no such file", "weir source accept"}, do: func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".away")) },
		mended: func(t *testing.T, dir string) { must(t, os.Rename(dir+".away", dir)) }},
	{name: "a file in the folder's place", whole: true, words: []string{"is not a folder", "weir source accept"}, do: func(t *testing.T, dir string) {
		must(t, os.Rename(dir, dir+".away"))
		must(t, os.WriteFile(dir, nil, 0o600))
	}, mended: func(t *testing.T, dir string) {
		must(t, os.Remove(dir))
		must(t, os.Rename(dir+".away", dir))
	}},
	{name: "another folder", whole: true, words: []string{"another folder", "weir source accept"}, do: func(t *testing.T, dir string) {
		must(t, os.Rename(dir, dir+".away"))
		must(t, os.Mkdir(dir, 0o700))
		put(t, dir, "a.yaml", policyOf("z"))
		put(t, dir, "c.yaml", policyOf("c"))
	}, mended: func(t *testing.T, dir string) {
		must(t, os.RemoveAll(dir))
		must(t, os.Rename(dir+".away", dir))
	}},
}

func write(name, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { put(t, dir, name, text) }
}

func replace(name string, by func(path string) error) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		remove(t, dir, name)
		must(t, by(filepath.Join(dir, name)))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fill(t *testing.T, dir string) {
	put(t, dir, "a.yaml", policyOf("a")+"---\n"+policyOf("b"))
	put(t, dir, "c.yaml", policyOf("c"))
}

func TestN01ASourceThatCannotBeReadChangesNothing(t *testing.T) {
	for _, way := range ways {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(way.name, ", at a start: ", restart), func(t *testing.T) {
				s, repo, _, dir := newSource(t)
				s.cfg.Warnings = health.New()
				fill(t, dir)
				scan(t, s)
				way.do(t, dir)
				if restart {
					s, repo = restarted(t, s)
				}
				later(t, s)
				have(t, "broken", repo, "a", "b", "c")
				told(t, "broken", s, "source-held", way.words...)
				if !way.whole {
					put(t, dir, "d.yaml", policyOf("d"))
					scan(t, s)
					have(t, "another file", repo, "a", "b", "c", "d")
					s, repo = restarted(t, s)
					scan(t, s)
					have(t, "after another start", repo, "a", "b", "c", "d")
					told(t, "after another start", s, "source-held", way.words...)
					put(t, dir, "d.yaml", policyOf("eee"))
					later(t, s)
					have(t, "what left a file may be in the broken one", repo, "a", "b", "c", "d", "eee")
					told(t, "what left", s, "source-held", "d.yaml", "NetworkPolicy/x/d")
					s, repo = restarted(t, s)
					scan(t, s)
					have(t, "what left, after a start", repo, "a", "b", "c", "d", "eee")
					must(t, os.RemoveAll(filepath.Join(dir, "a.yaml")))
					fill(t, dir)
				} else {
					way.mended(t, dir)
				}
				later(t, s)
				want := []string{"a", "b", "c"}
				if !way.whole {
					want = append(want, "eee")
				}
				have(t, "mended", repo, want...)
				well(t, "mended", s)
				remove(t, dir, "a.yaml")
				later(t, s)
				have(t, "a file removed", repo, want[2:]...)
			})
		}
	}
}

func TestN01ALookWithoutTheFolderIsAccepted(t *testing.T) {
	s, repo, _, dir := newSource(t)
	fill(t, dir)
	scan(t, s)
	remove(t, dir, "a.yaml")
	remove(t, dir, "c.yaml")
	later(t, s)
	have(t, "empty", repo, "a", "b", "c")
	if _, err := s.Accept("/none"); !errors.Is(err, ErrNoSource) {
		t.Errorf("a folder that is no source: %v", err)
	}
	if st, err := s.Accept(dir + "/"); err != nil || st.State != StateGood {
		t.Errorf("%+v, %v", st, err)
	}
	have(t, "accepted", repo)
	well(t, "accepted", s)
	s, repo = restarted(t, s)
	scan(t, s)
	have(t, "after a start", repo)

	fill(t, dir)
	scan(t, s)
	must(t, os.Rename(dir, dir+".away"))
	later(t, s)
	have(t, "away", repo, "a", "b", "c")
	_, err := s.Accept(dir)
	must(t, err)
	have(t, "away and accepted", repo)
}

func TestN01TheMarkSaysThatAFolderIsMeantToBeEmpty(t *testing.T) {
	s, repo, _, dir := newSource(t)
	fill(t, dir)
	scan(t, s)
	put(t, dir, EmptyMark, "")
	remove(t, dir, "a.yaml")
	remove(t, dir, "c.yaml")
	later(t, s)
	have(t, "marked", repo)
	well(t, "marked", s)
}

func TestN01FewerObjectsAreTakenOnceTheFileStandsStill(t *testing.T) {
	s, repo, _, dir := newSource(t)
	fill(t, dir)
	scan(t, s)
	now := time.Now()
	s.now = func() time.Time { return now }
	put(t, dir, "a.yaml", policyOf("a"))
	scan(t, s)
	have(t, "at once", repo, "a", "b", "c")
	if s.wake <= 0 || s.wake > fewerAfter {
		t.Errorf("the next look is in %s", s.wake)
	}
	now = now.Add(900 * time.Millisecond)
	put(t, dir, "a.yaml", policyOf("a")+"# more\n")
	scan(t, s)
	now = now.Add(900 * time.Millisecond)
	scan(t, s)
	have(t, "it did not stand still", repo, "a", "b", "c")
	now = now.Add(200 * time.Millisecond)
	scan(t, s)
	have(t, "it did", repo, "a", "c")
	well(t, "it did", s)
}

func TestN01AFileThatIsRenamedKeepsItsObjects(t *testing.T) {
	s, repo, _, dir := newSource(t)
	put(t, dir, "a.yaml", policyOf("a"))
	scan(t, s)
	must(t, os.Rename(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")))
	scan(t, s)
	have(t, "renamed", repo, "a")
	well(t, "renamed", s)
	if got := repo.policies["NetworkPolicy/x/a"][0].Resource.File; got != filepath.Join(dir, "b.yaml") {
		t.Errorf("it comes from %s", got)
	}
	must(t, os.Mkdir(filepath.Join(dir, "below"), 0o700))
	must(t, os.Rename(filepath.Join(dir, "b.yaml"), filepath.Join(dir, "below", "b.yaml")))
	scan(t, s)
	have(t, "moved", repo, "a")
	well(t, "moved", s)
}

// A file that was seen to go took its objects with it; what moved to a file that is
// wrong is kept.
func TestN01AFileThatWentWhileAnotherIsWrong(t *testing.T) {
	s, repo, _, dir := newSource(t)
	fill(t, dir)
	put(t, dir, "more.yaml", policyOf("more"))
	put(t, dir, "some.yaml", policyOf("some"))
	scan(t, s)
	put(t, dir, "a.yaml", policyOf("a")+"---\n"+policyOf("b")+"---\n"+strings.Replace(policyOf("some"), "podSelector", "podSelektor", 1))
	remove(t, dir, "more.yaml")
	remove(t, dir, "some.yaml")
	later(t, s)
	have(t, "gone and moved", repo, "a", "b", "c", "some")
	told(t, "gone and moved", s, "source-held", "some.yaml", "NetworkPolicy/x/some")
	put(t, dir, "a.yaml", policyOf("a")+"---\n"+policyOf("b")+"---\n"+policyOf("some"))
	later(t, s)
	have(t, "mended", repo, "a", "b", "c", "some")
	well(t, "mended", s)
}

func TestN01WhatCannotBeKeptIsNotInForce(t *testing.T) {
	s, repo, _, dir := newSource(t)
	fill(t, dir)
	scan(t, s)
	sources := filepath.Join(s.cfg.DataDir, "sources")
	must(t, os.Rename(sources, sources+".away"))
	put(t, dir, "d.yaml", policyOf("d"))
	if err := s.Scan(); err == nil {
		t.Error("no error")
	}
	have(t, "it cannot be kept", repo, "a", "b", "c")
	told(t, "it cannot be kept", s, "source-unkept", s.cfg.DataDir)
	must(t, os.Rename(sources+".away", sources))
	scan(t, s)
	have(t, "it can", repo, "a", "b", "c", "d")
	well(t, "it can", s)
}

func TestN01AFolderBelowThatIsLostChangesNothing(t *testing.T) {
	s, repo, _, dir := newSource(t)
	sub := filepath.Join(dir, "team")
	must(t, os.Mkdir(sub, 0o700))
	put(t, dir, "c.yaml", policyOf("c"))
	put(t, sub, "a.yaml", policyOf("a"))
	scan(t, s)
	have(t, "both", repo, "a", "c")
	must(t, os.Rename(sub, dir+".away")) // a mount that is lost leaves the empty folder
	must(t, os.Mkdir(sub, 0o700))
	later(t, s)
	have(t, "lost", repo, "a", "c")
	told(t, "lost", s, "source-held", "team", "weir source accept "+dir)
	put(t, dir, "c.yaml", policyOf("c")+"---\n"+policyOf("d"))
	scan(t, s)
	have(t, "others change", repo, "a", "c", "d")
	must(t, os.Remove(sub))
	must(t, os.Rename(dir+".away", sub))
	later(t, s)
	well(t, "it is back", s)
	remove(t, sub, "a.yaml")
	later(t, s)
	have(t, "its last file removed", repo, "c", "d")
	well(t, "its last file removed", s)
}

func TestN01APolicyOfTheAPIGoesOnlyByTheAPI(t *testing.T) {
	for _, both := range []bool{false, true} {
		for _, dir := range []string{"policies", "policies.copy"} {
			for name, damage := range map[string]func(string) error{
				"removed": os.Remove, "emptied": func(p string) error { return os.Truncate(p, 0) },
				"cut":    func(p string) error { return os.Truncate(p, 60) },
				"folder": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
			} {
				t.Run(fmt.Sprint(dir, " ", name, " both: ", both), func(t *testing.T) {
					s, _, _, _ := newSource(t)
					s.cfg.Warnings = health.New()
					for _, p := range []string{"a", "b"} {
						if _, _, problems, err := s.Put([]byte(policyOf(p)), "stdin"); err != nil || problems != nil {
							t.Fatal(problems, err)
						}
					}
					path := func(dir string) string { return filepath.Join(s.cfg.DataDir, dir, "NetworkPolicy_x_a.yaml") }
					must(t, damage(path(dir)))
					if both {
						must(t, os.WriteFile(path(map[string]string{"policies": "policies.copy", "policies.copy": "policies"}[dir]), []byte("nothing"), 0o600))
					}
					s, repo := restarted(t, s)
					scan(t, s)
					if !both {
						have(t, "restored", repo, "a", "b")
						well(t, "restored", s)
						for _, d := range []string{"policies", "policies.copy"} {
							if text, err := os.ReadFile(path(d)); err != nil || !strings.Contains(string(text), "podSelector") {
								t.Errorf("%s: %q, %v", path(d), text, err)
							}
						}
						return
					}
					have(t, "lost", repo, "b")
					told(t, "lost", s, "source-lost", "NetworkPolicy x/a", "weir policy apply")
					l, is := s.Lost(podLabels("a"))
					if _, not := s.Lost(podLabels("b")); not || !is || l.Object != "NetworkPolicy x/a" {
						t.Errorf("%v %v %v", l, is, not)
					}
					if _, _, err := s.Delete("NetworkPolicy", "x", "a"); err != nil {
						t.Error(err)
					}
					if _, is := s.Lost(podLabels("a")); is {
						t.Error("it is still lost")
					}
					well(t, "deleted", s)
				})
			}
		}
	}
}

func podLabels(app string) labels.LabelArray {
	ids, infos := labels.DefaultFilter().Split(labels.PodLabels(labels.Pod{Namespace: "x", Cluster: "default", Labels: map[string]string{"app": app}}))
	return ids.With(infos...)
}

// A deletion is complete once the index is written, whatever the agent dies at.
func TestN01ADeletionIsNeverUndone(t *testing.T) {
	s, _, _, _ := newSource(t)
	_, _, _, err := s.Put([]byte(policyOf("a")), "stdin")
	must(t, err)
	text, err := os.ReadFile(s.store.APIPath("NetworkPolicy/x/a"))
	must(t, err)
	_, _, err = s.Delete("NetworkPolicy", "x", "a")
	must(t, err)
	for _, dir := range []string{"policies", "policies.copy"} { // as a kill before their removal leaves them
		must(t, os.WriteFile(filepath.Join(s.cfg.DataDir, dir, "NetworkPolicy_x_a.yaml"), text, 0o600))
	}
	s, repo := restarted(t, s)
	scan(t, s)
	have(t, "after the start", repo)
}

// Of a policy that is replaced either version is whole at any time.
func TestN01AKillBetweenTheCopiesLosesNothing(t *testing.T) {
	s, _, _, _ := newSource(t)
	_, _, _, err := s.Put([]byte(policyOf("a")), "stdin")
	must(t, err)
	_, err = s.store.PutAPI("NetworkPolicy/x/a", []byte(strings.Replace(policyOf("a"), "Ingress", "Egress", 1))) // killed before Commit
	must(t, err)
	s, repo := restarted(t, s)
	scan(t, s)
	if ps := repo.policies["NetworkPolicy/x/a"]; len(ps) != 1 || !ps[0].IsolatesIngress {
		t.Errorf("%+v", ps)
	}
}

func TestN01WhatTheStoreLostIsKnown(t *testing.T) {
	s, _, _, dir := newSource(t)
	s.cfg.Warnings = health.New()
	fill(t, dir)
	scan(t, s)
	put(t, dir, "a.yaml", "a: [")
	kept, err := filepath.Glob(filepath.Join(s.cfg.DataDir, "sources", "a.yaml.*"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	must(t, os.Truncate(kept[0], 10))
	for range 2 { // also after one more start
		var repo *fakeRepository
		s, repo = restarted(t, s)
		found := 0
		s.cfg.Found = func(f func(labels.LabelArray) bool) {
			if f(podLabels("a")) && !f(podLabels("c")) {
				found++
			}
		}
		scan(t, s)
		have(t, "lost", repo, "c")
		told(t, "lost", s, "source-lost", "NetworkPolicy x/b", "weir source accept "+dir)
		for app, want := range map[string]bool{"a": true, "b": true, "c": false} {
			if _, is := s.Lost(podLabels(app)); is != want {
				t.Errorf("%s is lost: %v", app, is)
			}
		}
		if found != 0 {
			t.Error("found too early")
		}
	}
	found := 0
	s.cfg.Found = func(func(labels.LabelArray) bool) { found++ }
	fill(t, dir)
	later(t, s)
	if _, is := s.Lost(podLabels("a")); is || found != 1 {
		t.Errorf("still lost: %v, found %d times", is, found)
	}
	well(t, "mended", s)
}

func TestN01AnIndexThatIsLostClosesAllWhileTheSourceIsWrong(t *testing.T) {
	s, _, _, dir := newSource(t)
	s.cfg.StateDir = t.TempDir()
	fill(t, dir)
	_, _, _, err := s.Put([]byte(policyOf("p")), "stdin")
	must(t, err)
	indexes := []string{"sources/index.json", "policies.copy/index.json"}
	damage := func(upTo int) {
		for _, name := range indexes[:upTo] {
			must(t, os.WriteFile(filepath.Join(s.cfg.DataDir, name), []byte("{}"), 0o600))
		}
	}
	put(t, dir, "a.yaml", "a: [")
	damage(2)
	s, repo := restarted(t, s)
	scan(t, s)
	have(t, "a copy in the state directory", repo, "a", "b", "c", "p")

	damage(2)
	must(t, os.Truncate(filepath.Join(s.cfg.StateDir, "sources.json"), 100))
	for range 2 {
		s, repo = restarted(t, s)
		scan(t, s)
		have(t, "no index", repo, "c", "p")
		if _, is := s.Lost(podLabels("z")); !is {
			t.Error("it is not known what had been in force, and a pod is let in")
		}
		told(t, "no index", s, "source-lost", dir, "weir source accept")
	}
	put(t, dir, "a.yaml", policyOf("a"))
	scan(t, s)
	if _, is := s.Lost(podLabels("z")); is {
		t.Error("the source is whole, and a pod is not let in")
	}
	well(t, "whole", s)
}

func TestN01ThePoliciesOfAFormerAgentAreTakenOver(t *testing.T) {
	s, _, _, _ := newSource(t)
	s.cfg.StateDir = t.TempDir()
	former := filepath.Join(s.cfg.StateDir, "policies")
	must(t, os.Mkdir(former, 0o700))
	put(t, former, "NetworkPolicy_x_a.yaml", policyOf("a"))
	put(t, former, "NetworkPolicy_y_b.yaml", "apiVersion: netw")
	s, repo := restarted(t, s)
	scan(t, s)
	have(t, "taken over", repo, "a")
	told(t, "taken over", s, "source-lost", "NetworkPolicy y/b")
	s, repo = restarted(t, s)
	scan(t, s)
	have(t, "after another start", repo, "a")
	told(t, "after another start", s, "source-lost", "NetworkPolicy y/b")
	if left, _ := os.ReadDir(former); len(left) != 1 || !strings.Contains(left[0].Name(), ".bad-") {
		t.Errorf("left: %v", left)
	}
	if _, is := s.Lost(podLabels("a")); is {
		t.Error("a pod of another namespace is not let in")
	}
}

func TestN01AFirstInstallWaitsForNothing(t *testing.T) {
	s, repo, tables, _ := newSource(t)
	s.cfg.Warnings = health.New()
	scan(t, s)
	have(t, "an empty folder", repo)
	well(t, "an empty folder", s)
	if ok, _ := tables.Synced(tables.DB.ReadTxn()); !ok {
		t.Error("not in sync")
	}
	s.cfg.Dirs = []string{filepath.Join(t.TempDir(), "none")}
	s, repo = restarted(t, s)
	scan(t, s)
	told(t, "no folder", s, "source-held", "never held anything")
	if _, is := s.Lost(podLabels("a")); is {
		t.Error("a pod is not let in")
	}
}

func TestN01AFolderTakenOutOfTheConfigurationIsDeliberate(t *testing.T) {
	s, _, _, dir := newSource(t)
	fill(t, dir)
	scan(t, s)
	dirs := s.cfg.Dirs
	s.cfg.Dirs = nil
	s, repo := restarted(t, s)
	scan(t, s)
	have(t, "taken out", repo)
	if kept, _ := filepath.Glob(filepath.Join(s.cfg.DataDir, "sources", "*.yaml")); len(kept) != 0 {
		t.Errorf("kept: %v", kept)
	}
	remove(t, dir, "a.yaml")
	s.cfg.Dirs = dirs
	s, repo = restarted(t, s)
	scan(t, s)
	have(t, "and back", repo, "c")
}

func TestN01AfterAnotherBootAFolderIsKnownByItsFiles(t *testing.T) {
	s, _, _, dir := newSource(t)
	s.cfg.Boot = "one"
	fill(t, dir)
	scan(t, s)
	s.cfg.Boot = "two"
	s, repo := restarted(t, s)
	for d, id := range s.folderIDs() { // as they are where devices have other numbers now
		x := s.store.Index().Sources[dir]
		x.Dirs[d] = lastgood.Identity{Device: id.Device + 1, Inode: id.Inode}
	}
	must(t, s.store.Commit(s.store.Index()))
	s, repo = restarted(t, s)
	s.cfg.Boot = "two"
	remove(t, dir, "a.yaml")
	later(t, s)
	have(t, "a file removed while the node was off", repo, "c")
	s.cfg.Boot = "three"
	remove(t, dir, "c.yaml")
	s, repo = restarted(t, s)
	later(t, s)
	have(t, "all removed", repo, "c")
}

func TestN59FoldersBelowAreRead(t *testing.T) {
	s, repo, _, dir := newSource(t)
	s.cfg.Warnings = health.New()
	for _, d := range []string{"team/sub", ".hidden", "kust", "chart/templates", "lab"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o700))
	}
	put(t, dir, "team/sub/a.yaml", policyOf("a"))
	put(t, dir, ".hidden/b.yaml", policyOf("b"))
	put(t, dir, "kust/kustomization.yaml", "resources: [c.yaml]\n")
	put(t, dir, "kust/c.yaml", policyOf("c"))
	put(t, dir, "chart/Chart.yaml", "name: chart\n")
	put(t, dir, "chart/templates/d.yaml", "{{ .Values.x }}\n")
	put(t, dir, "lab/outside.yaml", "hosts: []\n")
	other := t.TempDir()
	put(t, other, "e.yaml", policyOf("e"))
	must(t, os.Symlink(other, filepath.Join(dir, "linked")))
	must(t, os.Symlink(other, filepath.Join(dir, "linked.yaml")))
	must(t, os.Symlink("..", filepath.Join(dir, "team", "loop")))
	scan(t, s)
	have(t, "below", repo, "a")
	list, err := List(dir)
	if err != nil || len(list) != 1 || list[0] != filepath.Join(dir, "team/sub/a.yaml") {
		t.Errorf("%v, %v", list, err)
	}
	var named []string
	for _, w := range s.cfg.Warnings.List() {
		named = append(named, w.Code+" "+w.Subject+" "+w.Next)
	}
	text := strings.Join(named, "\n")
	if !strings.Contains(text, "kubectl kustomize "+dir+"/kust") || !strings.Contains(text, "helm template "+dir+"/chart") || len(named) != 2 {
		t.Errorf("named: %s", text)
	}
	_, problems, err := Load([]string{dir}, Options{})
	if err != nil || len(problems) != 2 || !problems[0].Warning {
		t.Errorf("without an agent: %v, %v", problems, err)
	}
}

func TestN59AtAnUpgradeFoldersBelowWaitUntilTheyAreAccepted(t *testing.T) {
	s, _, _, dir := newSource(t)
	s.cfg.StateDir = t.TempDir()
	put(t, s.cfg.StateDir, "rules.json", "{}")
	must(t, os.Mkdir(filepath.Join(dir, "below"), 0o700))
	put(t, dir, "a.yaml", policyOf("a"))
	put(t, dir, "below/b.yaml", policyOf("b"))
	for range 2 {
		var repo *fakeRepository
		s, repo = restarted(t, s)
		scan(t, s)
		have(t, "upgraded", repo, "a")
		told(t, "upgraded", s, "source-below", "below/b.yaml", "weir source accept "+dir)
	}
	repo := s.cfg.Policies.(*fakeRepository)
	_, err := s.Accept(dir)
	must(t, err)
	have(t, "accepted", repo, "a", "b")
	well(t, "accepted", s)
	s, repo = restarted(t, s)
	scan(t, s)
	have(t, "after a start", repo, "a", "b")
}
