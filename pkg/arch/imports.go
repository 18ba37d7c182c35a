package arch

import (
	"fmt"
	"path"
	"strings"
)

// Problem is one breach of a rule.
type Problem struct {
	Rule string // short name of the rule
	Text string // what is wrong and what to do
}

// String prints "rule: text".
func (p Problem) String() string { return p.Rule + ": " + p.Text }

// openNeighbours may be imported by other packages of floor 2.
var openNeighbours = map[string]bool{"pkg/bpf": true, "bpf": true, "pkg/atomicfile": true}

// CheckImports applies the import rule to packages of one module.
func CheckImports(pkgs []Package, f *Floors) []Problem {
	var out []Problem
	report := func(rule, format string, args ...any) {
		out = append(out, Problem{rule, fmt.Sprintf(format, args...)})
	}
	for _, p := range pkgs {
		rel := p.rel()
		floor, known := f.Floor[rel]
		if !known {
			report("listed", "package %s is not in floors.txt; decide which floor it belongs to", rel)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := p.below(imp)
			if !ours {
				continue
			}
			toFloor, known := f.Floor[to]
			if !known {
				continue // reported at its own entry
			}
			if rule, text := f.judge(rel, floor, to, toFloor); rule != "" {
				report(rule, "%s (floor %d) imports %s (floor %d): %s", rel, floor, to, toFloor, text)
			}
		}
		out = append(out, f.checkModules(p, rel, floor)...)
	}
	graph := map[string][]string{}
	for edge := range f.Sideways {
		graph[edge[0]] = append(graph[edge[0]], edge[1])
	}
	if cycle := findCycle(graph); cycle != nil {
		report("acyclic", "sideways imports form a circle: %s", strings.Join(cycle, " -> "))
	}
	return out
}

// judge returns the broken rule and its reason, or empty strings.
func (f *Floors) judge(from string, floor int, to string, toFloor int) (rule, text string) {
	fromCell, toCell := path.Base(from) == "cell", path.Base(to) == "cell"
	switch {
	case toFloor > floor:
		return "upward", "a package imports only lower floors"
	case toCell && fromCell:
		return "cells", "cells never import each other"
	case toCell && path.Base(from) != "cmd":
		return "cells", "only a cmd imports a cell"
	case floor == 2 && toFloor == 1:
		return "thought-hands", "floors 1 and 2 never import each other; let floor 3 translate"
	case toFloor < floor:
		return "", ""
	case floor == 2:
		if openNeighbours[to] {
			return "", ""
		}
		return "neighbour", "on floor 2 only pkg/bpf, bpf and pkg/atomicfile may be imported by a neighbour"
	case floor == 4:
		return "neighbour", "doors do not import each other; the house joins them"
	case floor == 5:
		if fromCell || toCell || sameHouse(from, to) || strings.HasPrefix(from+"/", "test/") {
			return "", ""
		}
		return "neighbour", "houses do not import each other"
	}
	if _, ok := f.Sideways[[2]string{from, to}]; ok {
		return "", ""
	}
	return "sideways", "an import on the same floor needs a line with its reason in sideways.txt"
}

// sameHouse reports whether two packages of floor 5 belong to one binary.
func sameHouse(a, b string) bool {
	return strings.HasPrefix(b+"/", a+"/") || strings.HasPrefix(a+"/", b+"/") || path.Dir(a) == path.Dir(b)
}

// checkModules applies the rule for third-party modules.
func (f *Floors) checkModules(p Package, rel string, floor int) []Problem {
	var out []Problem
	check := func(imports []string, test bool) {
		for _, imp := range imports {
			if _, ours := p.below(imp); ours || !strings.Contains(strings.Split(imp, "/")[0], ".") {
				continue
			}
			if f.moduleAllowed(imp, rel, floor, test) {
				continue
			}
			where := ""
			if test {
				where = " in a test"
			}
			out = append(out, Problem{"modules", fmt.Sprintf("%s (floor %d) imports %s%s: modules.txt does not allow it there", rel, floor, imp, where)})
		}
	}
	check(p.Imports, false)
	check(p.TestImports, true)
	check(p.XTestImports, true)
	return out
}

func (f *Floors) moduleAllowed(imp, rel string, floor int, test bool) bool {
	for _, m := range f.Modules {
		if imp != m.Path && !strings.HasPrefix(imp, m.Path+"/") {
			continue
		}
		if m.Test && !test {
			continue
		}
		if m.Only != "" {
			if rel == m.Only || strings.HasPrefix(rel, m.Only+"/") {
				return true
			}
			continue
		}
		if test || floor >= m.From && floor <= m.To {
			return true
		}
	}
	return false
}

// rel is the package's path below its module; "." for the module's root.
func (p Package) rel() string {
	if rel, ok := p.below(p.ImportPath); ok {
		return rel
	}
	return p.ImportPath
}

// below cuts the module path off an import path.
func (p Package) below(imp string) (string, bool) {
	if p.Module == nil {
		return "", false
	}
	if imp == p.Module.Path {
		return ".", true
	}
	rel, ok := strings.CutPrefix(imp, p.Module.Path+"/")
	return rel, ok
}

// findCycle returns a circle in the graph, or nil.
func findCycle(graph map[string][]string) []string {
	const visiting, done = 1, 2
	state := map[string]int{}
	var stack, cycle []string
	var visit func(string) bool
	visit = func(n string) bool {
		state[n] = visiting
		stack = append(stack, n)
		for _, m := range graph[n] {
			if state[m] == visiting {
				cycle = append(append([]string{}, stack...), m)
				return true
			}
			if state[m] == 0 && visit(m) {
				return true
			}
		}
		state[n] = done
		stack = stack[:len(stack)-1]
		return false
	}
	for n := range graph {
		if state[n] == 0 && visit(n) {
			return cycle
		}
	}
	return nil
}
