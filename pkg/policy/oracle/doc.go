// Package oracle says what a connection's verdict has to be, slowly and
// obviously.
//
// # What
//
// Judge walks all policies for one connection of a World of pods and addresses
// and returns the verdict of each end with the rule that made it. It works on
// labels and addresses as they are: there are no identities, no map keys and no
// caches in it.
//
// # Neighbours
//
// Tests of policy, of the data plane and of the policy cases compare with it. It
// imports floor 0 only, so that no mistake of the resolver can be its own.
//
// # Rules
//
// It is meant to be read: where a question of speed and one of clarity meet,
// clarity wins.
//
// # Try it
//
//	go test ./pkg/policy/oracle
package oracle
