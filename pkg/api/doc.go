// Package api serves the agent's REST API on a unix socket.
//
// # What
//
// The server with its socket, limits and failure form; the handlers of
// everything but endpoints; the trail, a line of the log for every change with who
// asked for it; the queue of deletions that the CNI plugin left while the agent was
// down; the CNI configuration file.
//
// # Neighbours
//
// The daemon joins Handlers with those of endpoint/api and gives the sources.
// pkg/client, the CNI plugin and curl call it.
//
// # Rules
//
// Every operation that changes something leaves one line of the trail, also one
// that fails: the server sees to it, not the handlers. The form of a JSON body is checked in one place, before a handler sees it, against
// the spec. Handlers translate and decide nothing. A failure is an *v1.Error; any other
// error becomes "internal". The socket is never reachable by others than root
// and the configured group, not even while it is being made. The queue is
// replayed before the first request is served.
//
// # Try it
//
//	go test ./pkg/api
//	curl --unix-socket /var/run/weir/weir.sock http://localhost/v1/healthz
package api
