// Package filesource is the source of a node without a cluster: folders of
// Kubernetes YAML.
//
// # What
//
// It reads Pod, Namespace, Node, the policy kinds and what policies name (Service,
// EndpointSlice, CiliumCIDRGroup) from the files of one or more folders, watches
// them, and writes the changes to the tables of pkg/workload and to the policy
// repository.
//
// # Neighbours
//
// daemon/cmd starts it and gives its problems to the API; the API puts and
// deletes policies through it; cli reads a folder with Load.
//
// # Rules
//
// A file is one unit: if a part of it is wrong, its problems are reported with
// line and field and the file's last good version stays in force. Other files
// apply all the same. An object that two files hold is taken from the first in
// the order of names and reported. Tests of policies (kind PolicyTest) are passed
// over; CheckTests reads them. Folders are not read recursively. When an
// object that policies name changes, exactly the policies that depend on it are
// translated again; a name that nothing is known under is a warning.
//
// # Try it
//
//	go test ./pkg/filesource
package filesource
