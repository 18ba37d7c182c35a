package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeProc is a directory with two settings.
func fakeProc(t *testing.T) (root, file string) {
	t.Helper()
	root = t.TempDir()
	put(t, root, "net/a", "0\n")
	put(t, root, "net/b", "2\n")
	return root, filepath.Join(t.TempDir(), "state", "sysctl.json")
}

func put(t *testing.T, root, name, value string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, root, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func mustOpen(t *testing.T, root, file string) *Changes {
	t.Helper()
	c, damage := open(root, file)
	if damage != nil {
		t.Fatal(damage)
	}
	return c
}

func TestWhatWasBeforeTheFirstLifeComesBackAfterACrash(t *testing.T) {
	root, file := fakeProc(t)
	first := mustOpen(t, root, file)
	if err := first.Apply([]Setting{{Name: "net/a", Value: "1"}, {Name: "net/b", Value: "2"}}); err != nil {
		t.Fatal(err)
	}
	if got := first.List(); len(got) != 1 || got[0] != (Change{"net/a", "0", "1"}) {
		t.Errorf("changed: %v; b had its value already", got)
	}
	second := mustOpen(t, root, file) // the first was killed; the new version wants another value
	if err := second.Apply([]Setting{{Name: "net/a", Value: "5"}}); err != nil {
		t.Fatal(err)
	}
	third := mustOpen(t, root, file)
	if got := third.List(); len(got) != 1 || got[0] != (Change{"net/a", "0", "5"}) {
		t.Errorf("recorded: %v", got)
	}
	if left, err := third.Undo(); err != nil || len(left) != 0 {
		t.Errorf("left alone %v, %v", left, err)
	}
	if a, b := get(t, root, "net/a"), get(t, root, "net/b"); a != "0" || b != "2" {
		t.Errorf("after undo: a %s, b %s", a, b)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record: %v", err)
	}
	if left, err := third.Undo(); err != nil || len(left) != 0 {
		t.Errorf("a second undo: %v, %v", left, err)
	}
}

func TestUndoLeavesAloneWhatOthersHaveChangedSince(t *testing.T) {
	root, file := fakeProc(t)
	c := mustOpen(t, root, file)
	if err := c.Apply([]Setting{{Name: "net/a", Value: "1"}, {Name: "net/b", Value: "0"}}); err != nil {
		t.Fatal(err)
	}
	put(t, root, "net/a", "7")
	if err := os.Remove(filepath.Join(root, "net/b")); err != nil {
		t.Fatal(err)
	}
	left, err := c.Undo()
	if slices.Sort(left); err != nil || !slices.Equal(left, []string{"net/a", "net/b"}) || get(t, root, "net/a") != "7" {
		t.Errorf("left alone %v, %v, a is %s", left, err, get(t, root, "net/a"))
	}
}

func TestTheRecordIsThereBeforeTheSettingIsWritten(t *testing.T) {
	root, file := fakeProc(t)
	c := mustOpen(t, root, file)
	put(t, filepath.Dir(file), "x", "")
	if err := os.Remove(filepath.Join(root, "net/a")); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply([]Setting{{Name: "net/a", Value: "1"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a setting that is not there: %v", err)
	}
	if err := os.Mkdir(file, 0o755); err != nil { // no record can be written
		t.Fatal(err)
	}
	put(t, file, "in-the-way", "")
	if err := c.Apply([]Setting{{Name: "net/b", Value: "0"}}); err == nil || get(t, root, "net/b") != "2" {
		t.Errorf("changed without a record: %v, b is %s", err, get(t, root, "net/b"))
	}
}

func TestN25ADamagedRecordIsSetAsideAndToldAndNoReasonNotToStart(t *testing.T) {
	root, file := fakeProc(t)
	for _, text := range []string{"", "{", "null", "{}", `{"version":1,"changes":[{"name":"../../etc/passwd","old":"1","new":"2"}]}`} {
		put(t, filepath.Dir(file), filepath.Base(file), text)
		c, damage := open(root, file)
		if damage == nil || c == nil || len(c.List()) != 0 {
			t.Errorf("%q was accepted: %v", text, damage)
			continue
		}
		if kept := get(t, filepath.Dir(damage.Path), filepath.Base(damage.Path)); kept != text {
			t.Errorf("%q became %q", text, kept)
		}
	}
	put(t, filepath.Dir(file), filepath.Base(file), `{"version":9,"changes":[{"name":"net/a","old":"1","new":"2"}],"more":1}`)
	if c, damage := open(root, file); damage != nil || len(c.List()) != 1 {
		t.Errorf("the record of a newer agent is not read as far as it can be: %v", damage)
	}
}
