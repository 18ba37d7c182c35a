// Package metadata gives endpoints the labels and named ports of their pods,
// and keeps them right.
//
// # What
//
// Attach waits a short time for the pod to appear, sets the labels, and follows
// the pod and its namespace as long as the endpoint lives. Without a pod the
// endpoint starts as reserved:init, or with the labels of the request.
//
// # Neighbours
//
// Reads the tables of workload; calls Endpoint.SetLabels.
//
// # Rules
//
// Labels are read again after every change, so a change between two reads is
// never lost. A pod of another UID, or one that has ended, is not the
// endpoint's pod. A pod that goes away leaves the labels as they are: the
// deletion of the endpoint is the runtime's business.
//
// # After a restart
//
// A restored endpoint keeps the labels of its record until all restored endpoints
// are built, so that no identity is new to the policy in force of another, and its
// pod is seen, with its namespace unless that is known to have no object. The label
// of the namespace's name is added to records of versions that did not know it.
//
// # Try it
//
//	go test ./pkg/endpoint/metadata
package metadata
