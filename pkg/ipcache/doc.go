// Package ipcache knows which identity an address has, and keeps the kernel's
// map of it in step.
//
// # What
//
// Sources attach metadata to prefixes: "this address is endpoint 7, identity
// 1001", "that one is a pod with these labels", "a remote node". The policy
// names prefixes (the set P). From both the cache derives, for every prefix of
// either, who it is (identity) and where it is (prefix identity), and one worker
// brings that into the kernel.
//
// # Neighbours
//
// Fed by endpoint (local pods), node (nodes, pods elsewhere) and
// policy/repository (P). It allocates from identity/cache, announces identities
// to policy/repository, writes maps/ipcachemap and tells endpoints the prefix
// identity of their addresses. Read by the API and by weir why.
//
// # Rules
//
// An outside address whose longest match in P is p has the identity of
// {cidr:p, reserved:world-ipv4 or -ipv6} as identity and prefix identity;
// without a match there is no entry, which means world. An address with
// metadata keeps its identity and has as prefix identity the one of {cidr:p} of
// its longest match p among the prefixes used by a block that matches pods.
//
// Of several owners of a prefix the strongest source wins, then the one that
// was not removed before, then the latest. Only an owner removes its metadata.
//
// Order of one round: allocate; announce new identities and wait until all policy
// maps hold them; write entries, narrow before wide; delete entries, wide before
// narrow; tell endpoints; let live flows be judged again; release; announce the
// identities that have gone. Whatever fails is tried again, after 100 ms to 10 s;
// other changes do not wait for that, and a prefix that no number can be had for is
// closed meanwhile and waits alone.
// Check, called now and then, undoes what others did to the kernel's map.
//
// What cannot be told apart is closed: it has the reserved identity closed, which
// the data plane denies in both directions whatever the policy says. That is a
// prefix or an owner that no number can be had for; and, where the map has no room
// for all, the nearest prefix around each that is left out, or all of the family if
// there is none, but for narrower prefixes that have room. The addresses of this
// node have room first, then others of the cluster, then prefixes of policies with
// others inside, then the rest; in each in the order of address. Two places stay
// free for closing a whole family. At every moment an address has its answer from
// before the round, that from after it, or is closed. Closed ones open by
// themselves when there is room again.
//
// # After a restart
//
// Start reads the kernel's entries and leaves those that nobody has asked for
// yet alone, until Prune; what was closed stays so until then. Numbers are the
// same as before (identity/cache), so nothing is written that is already there.
// Start only after the policies have been read and the prefixes of policies were set.
//
// # Try it
//
//	go test -race ./pkg/ipcache
package ipcache
