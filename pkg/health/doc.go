// Package health holds the warnings of an agent: what is wrong now, since when,
// what it breaks and what to do.
//
// # What
//
// A Registry keeps one Warning per code and subject for as long as its cause
// stands. The status, the exit code of "weir status" and metrics are made from
// the list.
//
// # Neighbours
//
// Modules of floors 3 to 5 set and clear warnings; daemon/cmd folds the list
// into the status of the API.
//
// # Rules
//
// A warning says what it breaks: enforcement (a policy is not enforced as
// written), pods (a pod has no network, less of it, or the wrong one), or nothing.
// It goes when its cause does, never by itself and never by time. Since is kept
// while a warning stands, whatever else of it changes.
//
// # After a restart
//
// The registry starts empty. A module whose cause is on disk (something that was
// set aside, a held source) sets its warning again at the start.
//
// # Try it
//
//	go test ./pkg/health
package health
