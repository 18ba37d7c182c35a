// Package policy turns policies into what the kernel holds: which rules select
// a pod, and the entries they become for the identities that exist.
//
// # What
//
// Resolve picks a subject's rules and ranks them (SelectorPolicy). An Index
// knows the identities, which of them each selector matches, and the named ports
// of the pods behind them. The two together give a MapState: the lines of a
// policy map, of which the longest match in a plane (one identity and direction)
// is always the strongest that covers the packet.
//
// # Neighbours
//
// policy/k8s writes the policies, policy/repository holds the Index and caches
// results, policy/explain prints them, pkg/endpoint turns a MapState into kernel
// keys, and policy/oracle says in tests what the answer should have been.
//
// # Rules
//
// Pure: no clock, no goroutine, no I/O; every value is immutable once returned
// and may be shared. A deny beats an allow of the same tier and priority however
// specific; of rules equally strong the first in the order of RuleRef.Compare
// gives its name. Label selectors ask who and never match a pod's prefix
// identity; CIDR peers ask where and match nothing but prefix identities.
// What cannot be told apart is denied: see Index about named ports.
//
// # Try it
//
//	go test ./pkg/policy
package policy
