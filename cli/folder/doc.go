// Package folder reads folders of YAML as worlds to be simulated.
//
// # What
//
// Read reads pods, namespaces, nodes, policies and tests of a folder, and
// lab/outside.yaml below it, which lists hosts outside.
//
// # Neighbours
//
// pkg/filesource reads the files as an agent would, pkg/policy/testfile the
// tests. cli/cmd calls it.
//
// # Rules
//
// No agent and no root. What an agent would refuse is an error here: a verdict
// of half a folder is none.
//
// # Try it
//
//	bin/weir policy table examples/shop
package folder
