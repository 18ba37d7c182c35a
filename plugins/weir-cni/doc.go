// Package main is weir-cni, the program that container runtimes start.
//
// # What
//
// main hands over to package cmd.
//
// # Neighbours
//
// Started by a container runtime through libcni; asks weir-agent.
//
// # Rules
//
// Nothing is printed to standard output but the result or the error.
//
// # Try it
//
//	go build -o /opt/cni/bin/weir-cni ./plugins/weir-cni && CNI_COMMAND=VERSION /opt/cni/bin/weir-cni
package main
