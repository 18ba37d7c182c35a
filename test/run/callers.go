package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
)

// kernelTests returns "package.Test" of every test function of the packages
// that calls testutils.Kernel, itself or through functions of its package.
func kernelTests(patterns []string) ([]string, error) {
	out, err := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var tests []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			sort.Strings(tests)
			return tests, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading go list: %w", err)
		}
		calls := callGraph{}
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			if err := calls.add(filepath.Join(p.Dir, name)); err != nil {
				return nil, err
			}
		}
		for _, t := range calls.tests() {
			tests = append(tests, p.ImportPath+"."+t)
		}
	}
}

// kernelCall stands for testutils.Kernel in a call graph.
const kernelCall = "testutils.Kernel"

// callGraph holds, by the name of a function or method of a package's test
// files, the names that it mentions.
type callGraph map[string]map[string]bool

func (g callGraph) add(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		mentions := g[fn.Name.Name]
		if mentions == nil {
			mentions = map[string]bool{}
			g[fn.Name.Name] = mentions
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				mentions[n.Name] = true
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "testutils" && n.Sel.Name == "Kernel" {
					mentions[kernelCall] = true
				}
			}
			return true
		})
	}
	return nil
}

// tests returns the test functions from which the call is reached.
func (g callGraph) tests() []string {
	reaches := map[string]bool{kernelCall: true}
	for again := true; again; {
		again = false
		for fn, mentions := range g {
			if reaches[fn] {
				continue
			}
			for name := range mentions {
				if reaches[name] {
					reaches[fn], again = true, true
					break
				}
			}
		}
	}
	var out []string
	for fn := range g {
		if reaches[fn] && strings.HasPrefix(fn, "Test") && fn != "TestMain" {
			out = append(out, fn)
		}
	}
	return out
}
