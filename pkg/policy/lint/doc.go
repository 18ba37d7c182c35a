// Package lint finds what is valid in a policy and still not what its author
// meant: traps of the dialects, and rules that never decide.
//
// # What
//
// Run takes decoded policy objects and the pods, namespaces and nodes that are
// known, and returns Findings: a code of Codes, the place, the reason and what to
// do. Three kinds of check: of the text as written (WL1..), of what it selects
// among the pods that are known (WL2..), and of rules against each other (WL3..).
//
// # Neighbours
//
// policy/k8s decodes and translates, policy/simulate gives identities, policy
// says which rule decides. "weir policy lint" prints; docs/lint.md lists the codes.
//
// # Rules
//
// Pure. A code never changes its meaning. One cause is one finding. Which rule
// decides is asked of policy, never worked out here: a rule counts as shadowed
// only if it decides nothing for the pods that are known and for made-up pods that
// have just the labels that some selector asks for. Checks that need pods are left
// out where none are known. The annotation weir/lint-ignore of an object lists
// codes that it does not want to hear of.
//
// # Try it
//
//	go test ./pkg/policy/lint
package lint
