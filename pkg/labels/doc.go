// Package labels holds labels, their canonical forms, the selectors over them
// and the filter that says which of them take part in an identity.
//
// # What
//
// A Label is source:key=value. A LabelArray is a sorted, immutable set whose
// Key is one unambiguous string. A Selector is a list of requirements. A Filter
// splits a set into labels that make the identity and labels that only inform.
//
// # Neighbours
//
// Read by every layer; it imports nothing of the project.
//
// # Rules
//
// Two sets have the same Key exactly when they are equal, whatever bytes their
// keys and values hold. PodLabels is the only way from a pod to a set: nothing
// that a pod's author writes can name the reserved source, the namespace, the
// service account, the cluster or a label of the namespace.
//
// # Try it
//
//	go test ./pkg/labels
package labels
