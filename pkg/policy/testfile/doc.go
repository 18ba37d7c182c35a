// Package testfile reads and runs tests of policies that people write beside
// them.
//
// # What
//
// A test is an object of kind PolicyTest in a YAML file, by habit one whose name
// ends in _test.yaml:
//
//	apiVersion: weir.net/v1
//	kind: PolicyTest
//	metadata: {name: shop}
//	namespaces:                       # beside those of the folder
//	  - {name: lab, labels: {team: lab}}
//	pods:                             # beside those of the folder
//	  - {namespace: lab, name: probe, labels: {app: probe}, ports: [{name: http, port: 80}]}
//	outside:
//	  - {name: customer, addresses: [203.0.113.10]}
//	expect:
//	  - {from: shop/frontend, to: shop/api, port: http, verdict: allow}
//	  - {from: [lab/probe, customer], to: shop/db, port: [5432, 7946/UDP], verdict: deny, rule: NetworkPolicy shop/db}
//
// from and to are pods (namespace/name, or a name that is unique), hosts, "node"
// for the local node, or addresses. port is a number or a name of the
// destination, with /UDP or /SCTP where it is not TCP, or ICMP. A list stands for
// each of its members. rule is what must have decided: "KIND NAMESPACE/NAME", with
// "SECTION[INDEX]" behind for one rule of it, "default deny" or "not isolated".
// family (IPv4 or IPv6) limits an expectation to one of those that both ends have.
//
// Read reads, Run asks a simulate.Cluster, Report is printed as a table, JUnit
// and TAP.
//
// # Neighbours
//
// policy/k8s decodes strictly, policy/simulate judges, filesource passes the kind
// over, "weir policy test" prints.
//
// # Rules
//
// Pure. What an expectation names and the world does not have is a failure, never
// left out. A test that expects nothing is refused. "weir policy validate" reports a
// bad test as a problem; the agent passes tests over, whatever they hold.
//
// # Try it
//
//	go test ./pkg/policy/testfile
package testfile
