// Package pool hands out the addresses of one prefix.
//
// # What
//
// A Pool knows which addresses of its prefix are in use and by whom, and picks
// the next free one.
//
// # Neighbours
//
// Used by ipam, one pool per family. It imports nothing of the project.
//
// # Rules
//
// An address has one owner. The gateway, the network and broadcast addresses of
// IPv4 (not of a /31 or /32: RFC 3021) and the subnet-router anycast address of
// IPv6 (RFC 4291 section 2.6.1) are not handed out. An address that was given
// back is handed out again after all others. What Avoid names is not picked. A Pool is not safe for concurrent
// use.
//
// # Try it
//
//	go test ./pkg/ipam/pool
package pool
