// Package suggest makes the narrowest policies that let recorded flows pass.
//
// # What
//
// From takes events in the form of the monitor and returns policy objects: for
// every set of pods that an event judged in a direction, an isolation in that
// direction and rules for exactly the flows that passed.
//
// # Neighbours
//
// api/v1/gen is the form of events; "weir policy suggest" reads them and prints
// the objects; policy/k8s translates them like any other.
//
// # Rules
//
// Pure, and the same output for the same flows in any order. A flow that one end
// denied is not allowed; what passed in audit mode is, and noted. Pods are told apart by their labels alone: what one
// replica did, all may do. A direction of pods that no event judged stays as it
// is. What cannot be said exactly is said more widely and noted.
//
// # Try it
//
//	go test ./pkg/policy/suggest
package suggest
