// Package probe sends the packets of a lab while following its agent's events,
// and joins both to truth tables.
//
// # What
//
// A Recorder keeps what an agent tells; Matrix probes every pair and says for a
// denied one which direction and rule denied it.
//
// # Neighbours
//
// cli/cmd and the tests in test/ call it; it uses pkg/lab and pkg/client.
//
// # Rules
//
// A cell without an answer and without an event is shown as such, never as denied.
//
// # Try it
//
//	bin/weir lab up examples/shop && bin/weir lab probe
package probe
