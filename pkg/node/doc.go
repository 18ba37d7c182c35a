// Package node knows the local node, and tells ipcache who everybody is that is
// not a local endpoint.
//
// # What
//
// It reads the addresses of the node's own network namespace and follows their
// changes. From them and the tables of pods, namespaces and nodes it derives:
// addresses of this node are host, addresses of other nodes are remote-node, other
// endpoints of the service default/kubernetes are kube-apiserver,
// pods in a node's network count as that node, pods on other nodes have the
// identity of their labels.
//
// # Neighbours
//
// Reads workload and the kernel; writes ipcache.
//
// # Rules
//
// Local endpoints publish their addresses themselves; pods of this node are left
// out here, and so are pods that no node runs yet. An address that only a pod's
// object claims becomes host only if the object says that this node runs it in
// its own network. All is derived anew after each change and compared with what
// was told last, so no event can be missed for good.
//
// # After a restart
//
// Nothing is kept. Start has told everything it knows when it returns.
//
// # Try it
//
//	go test ./pkg/node
package node
