// Package explain says why a connection is allowed or denied.
//
// # What
//
// From the resolved policy of each end it makes an Explanation: per direction
// the verdict, the rule that decided, what matched besides and lost, and the
// policies that isolate the pod.
//
// # Neighbours
//
// daemon/cmd gives it the policies of two endpoints, policy/simulate those of two
// ends; the API, "weir why" and "weir policy" print it.
//
// # Rules
//
// Pure. The first match of policy.Matching decides; nothing here judges anew. An
// end that is closed (pkg/ipcache) is denied without a match, audited or not.
//
// # Try it
//
//	go test ./pkg/policy/explain
package explain
