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
	"strings"
)

// kernelCallers returns "package.Test" of every test function of the packages
// that calls testutils.Kernel. A call elsewhere in a test file is an error.
func kernelCallers(patterns []string) ([]string, error) {
	out, err := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var callers []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return callers, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading go list: %w", err)
		}
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			tests, err := callersInFile(filepath.Join(p.Dir, name))
			if err != nil {
				return nil, err
			}
			for _, t := range tests {
				callers = append(callers, p.ImportPath+"."+t)
			}
		}
	}
}

func callersInFile(path string) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var tests []string
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		calls := 0
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "testutils" && sel.Sel.Name == "Kernel" {
				calls++
			}
			return true
		})
		if calls == 0 || strings.HasPrefix(fn.Name.Name, "Benchmark") {
			continue
		}
		if fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") {
			return nil, fmt.Errorf("%s: %s calls testutils.Kernel; call it in the test function itself, so that kernel tests can be counted", fset.Position(fn.Pos()), fn.Name.Name)
		}
		tests = append(tests, fn.Name.Name)
	}
	return tests, nil
}
