// Package cmd holds the verbs of the CNI plugin (spec 1.1): ADD, DEL, CHECK,
// STATUS, GC and VERSION.
//
// # What
//
// ADD leases addresses while it makes the link, then asks for the endpoint while
// it configures the pod's end, and returns when the agent says that the endpoint
// is ready. DEL is the same backwards.
//
// # Neighbours
//
// Started by a container runtime; asks the agent through pkg/client and builds
// links itself, because the agent cannot open a container's namespace.
//
// # Rules
//
// The end on the node stays down and unrouted: the agent opens it when the
// policy is in force. An ADD that fails leaves nothing; one that is killed is
// cleaned up by DEL alone. DEL succeeds for whatever is gone, and queues on
// disk while the agent is down. An error names the station it waited for.
//
// # After a restart
//
// The plugin keeps nothing in memory. A link is ours when its name on the node
// is the one that HostName makes of the attachment.
//
// # Try it
//
//	go test ./plugins/weir-cni/...
package cmd
