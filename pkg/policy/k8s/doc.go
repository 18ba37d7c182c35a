// Package k8s reads policy objects from YAML or JSON and translates the dialects
// to the one rule form of policy/types.
//
// # What
//
// Split cuts a text into documents, Decode makes policy objects of them and
// Translate makes policies. The dialects are NetworkPolicy of
// networking.k8s.io/v1, the two kinds of policy/api and ClusterNetworkPolicy of
// policy.networking.k8s.io. What policies name beside
// pods (groups of blocks, services, nodes) is given to Translate as References;
// TranslateTraced also says which of them an object depends on.
//
// # Neighbours
//
// filesource and the REST API feed it, policy/repository takes the policies.
// filesource also uses Split and Document.Decode for pods, namespaces and nodes.
//
// # Rules
//
// Nothing is ignored: a field that is unknown or not supported yet, a name given
// twice, a value of the wrong type and a policy without a rule are refused, each
// with file, line, object, field, value and what to do. An object is taken whole
// or not at all. A missing list and an empty one differ (B15); in cilium.io
// objects null is neither and is refused. No selector of either dialect matches
// the outside or a node unless it names a reserved label (B16).
//
// # Try it
//
//	go test ./pkg/policy/k8s
package k8s
