package filesource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAPipeInAFolderIsAProblemAndHoldsNothingUp(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "b.yaml", denyAll)
	if err := unix.Mkfifo(filepath.Join(dir, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.yaml", filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	snap, problems, err := Load([]string{dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 2 || !strings.Contains(problems[0].String(), "a.yaml") || !strings.Contains(problems[0].Text, "give a file") {
		t.Errorf("problems %v", problems)
	}
	if len(snap.Policies) != 1 {
		t.Errorf("%d policies of the file beside it, want 1", len(snap.Policies))
	}
	if _, err := CheckTests([]string{dir}); err == nil {
		t.Error("the tests of a folder with a pipe were read")
	}
}
