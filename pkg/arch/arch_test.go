package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTree checks the project itself.
func TestTree(t *testing.T) {
	root := "../.."
	pkgs, err := List(root)
	if err != nil {
		t.Fatal(err)
	}
	floors, err := ReadFloors(".")
	if err != nil {
		t.Fatal(err)
	}
	problems := append(CheckImports(pkgs, floors), CheckDocs(pkgs, floors)...)
	sizes, err := CheckSizes(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(problems, sizes...) {
		t.Error(p)
	}
	for listed := range floors.Floor {
		if _, err := os.Stat(filepath.Join(root, listed)); err != nil {
			t.Errorf("floors.txt lists %s, which is not there: %v", listed, err)
		}
	}
}

// TestBrokenTrees shows that every rule catches its breach: each folder of
// testdata is a small module with a file "want" that holds one line a problem,
// "rule: part of the text".
func TestBrokenTrees(t *testing.T) {
	trees, err := filepath.Glob("testdata/*/want")
	if err != nil || len(trees) < 12 {
		t.Fatalf("found %d broken trees (%v), want at least 12", len(trees), err)
	}
	for _, want := range trees {
		dir := filepath.Dir(want)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			got := checkTree(t, dir)
			text, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			if lines[0] == "" {
				lines = nil
			}
			if len(got) != len(lines) {
				t.Errorf("found %d problems, want %d:\n%v", len(got), len(lines), got)
			}
			for _, line := range lines {
				if !contains(got, line) {
					t.Errorf("no problem %q among\n%v", line, got)
				}
			}
		})
	}
}

func checkTree(t *testing.T, dir string) []Problem {
	t.Helper()
	pkgs, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	floors, err := ReadFloors(dir)
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := CheckSizes(dir)
	if err != nil {
		t.Fatal(err)
	}
	return append(append(CheckImports(pkgs, floors), CheckDocs(pkgs, floors)...), sizes...)
}

func contains(problems []Problem, line string) bool {
	rule, part, _ := strings.Cut(line, ": ")
	for _, p := range problems {
		if p.Rule == rule && strings.Contains(p.Text, part) {
			return true
		}
	}
	return false
}
