// Package api holds the policy kinds of the API group cilium.io/v2 as far as
// Weir understands them.
//
// # What
//
// CiliumNetworkPolicy governs pods of its own namespace,
// CiliumClusterwideNetworkPolicy pods of all namespaces, CiliumCIDRGroup lists
// blocks that both may name. Fields that Weir knows but does not support yet are
// listed by Unsupported with what to do instead.
//
// # Neighbours
//
// policy/k8s decodes objects into these types and translates them to
// policy/types.
//
// # Rules
//
// A list that is missing and a list that is empty mean different things (B15):
// no peer key is anybody, an empty list of peers is nobody. The fields are
// tagged omitzero, not omitempty, so that the difference survives JSON.
//
// # Try it
//
//	go test ./pkg/policy/api
package api

//go:generate go tool controller-gen object paths=.
