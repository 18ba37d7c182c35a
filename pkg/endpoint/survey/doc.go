// Package survey finds the endpoints that outlived an agent: by their records, and
// by what the kernel knows of their links.
//
// # What
//
// Take reads the records, the links of ours, the endpoint map, the ipcache and the
// routes, and pairs them. A link without a usable record gets one made from the
// kernel: number, identity, addresses, hardware addresses, container and pod. What
// cannot even be made is an Orphan: it keeps what it has while its link lives.
//
// # Neighbours
//
// The daemon takes the survey before any number, address or slot is given out, and
// gives it to identity/cache (numbers whose labels are known), endpointmanager
// (records) and ipam (addresses). Records are read by pkg/endpoint.
//
// # Rules
//
// A record that is whole is believed before the kernel. Of the kernel the endpoint
// map is believed before the mark on the link, and that before the leases. What
// cannot be read of the kernel is passed over: it is never a reason not to start.
//
// # After a restart
//
// This is it. Records of another boot revive nothing.
//
// # Try it
//
//	go test ./pkg/endpoint/survey ./test/node -run TestN02
package survey
