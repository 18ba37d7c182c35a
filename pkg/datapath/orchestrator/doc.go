// Package orchestrator owns the start of the data plane and is the only caller
// of the loader.
//
// # What
//
// Initialize sets the node up and loads the bodies of the configured shapes;
// DatapathInitialized tells when that has succeeded once. ReloadDatapath loads
// an endpoint's programs for attaching, Unload takes them away.
//
// # Neighbours
//
// Used by pkg/endpoint and its regenerator; it uses datapath/loader,
// datapath/attach and, through the functions it is given, datapath/sysctl.
//
// # Rules
//
// A build waits for DatapathInitialized BEFORE it takes the compilation lock for
// reading. The other order deadlocks: the build would hold the lock while it
// waits for an initialisation that needs the lock for writing. The lock is the
// one of the two documented exceptions to "no lock across a call into another
// package" and lives in compilation_lock.go alone.
//
// # After a restart
//
// Nothing is kept here. Attached tells which programs run on a link, to be
// compared with the endpoint's record.
//
// # Try it
//
//	go test ./pkg/datapath/orchestrator
package orchestrator
