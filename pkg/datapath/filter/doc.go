// Package filter looks at the node's packet filter: whether it drops what the
// node forwards for pods, and which rules would let it pass.
//
// # What
//
// Look finds the chains that drop forwarded packets by default, as Docker, ufw
// and firewalld set them up, and the accept rules for the pods' pools that they
// lack. Accept inserts such rules, Withdraw takes away those that Accept made.
//
// # Neighbours
//
// Called by pkg/upkeep. It runs nft and iptables, which must be installed: nft
// shows what iptables-nft has made too, and iptables-legacy is asked where the
// kernel has its tables.
//
// # Rules
//
//   - Everything happens in the network namespace of the calling thread.
//   - An accept in another table does not help against a chain that drops
//     (nft(8)), so a rule goes into the very chain.
//   - A chain is taken to let pods pass if it, or a chain that all packets jump
//     to, accepts by source and by destination a prefix that holds the pool, or
//     by the links of pods. Rules with further conditions do not count.
//   - A rule of ours is known by its comment; no other is ever touched, and no
//     policy of a chain is.
//   - Every call has a timeout.
//
// # After a restart
//
// Nothing is kept here: the rules themselves are the record.
//
// # Try it
//
//	go test ./pkg/datapath/filter
package filter
