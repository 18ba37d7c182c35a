// Package client calls the agent's REST API over its unix socket.
//
// # What
//
// One typed method for each operation, with a time limit, and the plugin's side
// of the delete queue for when the agent is down.
//
// # Neighbours
//
// Used by the CNI plugin and the command weir; pkg/api answers.
//
// # Rules
//
// Every failure is an *v1.Error. The client's own codes tell an agent that does
// not run (unreachable) from a socket that this user may not open (permission)
// and an agent of another major API version (version-mismatch).
//
// # Try it
//
//	go test ./pkg/client
package client
