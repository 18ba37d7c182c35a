package arch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The size that one room may have, in lines.
const (
	MaxGoLines     = 600
	MaxTestLines   = 900
	MaxHeaderLines = 400
)

// headings that the doc.go of a package must hold; floors 2 and 3 also say
// what happens after a restart.
var headings = []string{"# What", "# Neighbours", "# Rules", "# Try it"}

const restartHeading = "# After a restart"

// CheckDocs reports packages without a complete doc.go.
func CheckDocs(pkgs []Package, f *Floors) []Problem {
	var out []Problem
	for _, p := range pkgs {
		rel := p.rel()
		if len(p.GoFiles) == 0 || generated(rel) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if err != nil {
			out = append(out, Problem{"docs", fmt.Sprintf("%s has no doc.go; say what it is, its neighbours and its rules", rel)})
			continue
		}
		want := headings
		if floor := f.Floor[rel]; floor == 2 || floor == 3 {
			want = append([]string{restartHeading}, headings...)
		}
		for _, h := range want {
			if !bytes.Contains(text, []byte("// "+h+"\n")) {
				out = append(out, Problem{"docs", fmt.Sprintf("%s/doc.go has no heading %q", rel, h)})
			}
		}
	}
	return out
}

// CheckSizes reports files below dir that outgrew one room.
func CheckSizes(dir string) ([]Problem, error) {
	var out []Problem
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != dir && (strings.HasPrefix(name, ".") || name == "testdata" || name == "gen" || name == "bin" || name == "build") {
				return filepath.SkipDir
			}
			return nil
		}
		limit := 0
		switch {
		case strings.HasPrefix(name, "zz_"):
		case strings.HasSuffix(name, "_test.go"):
			limit = MaxTestLines
		case strings.HasSuffix(name, ".go"):
			limit = MaxGoLines
		case strings.HasSuffix(name, ".h"):
			limit = MaxHeaderLines
		}
		if limit == 0 {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte("\n")); n > limit {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, Problem{"size", fmt.Sprintf("%s has %d lines, more than %d; split it by noun", rel, n, limit)})
		}
		return nil
	})
	return out, err
}

// generated reports whether a package is written by a generator alone.
func generated(rel string) bool { return strings.HasSuffix(rel, "/gen") }
