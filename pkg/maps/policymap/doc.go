// Package policymap holds the node's policies (weir_policy): an array of maps
// with one slot per distinct policy.
//
// # What
//
// Slots hands out slots by contents: equal policies share one. A slot's map is
// complete before its number is returned, so that an endpoint takes a policy
// over by one store of the number (lxcmap.Config.SetPolicy).
//
// # Neighbours
//
// Written by pkg/endpoint, which makes keys and entries from a MapState; read
// by the programs in bpf/ and by the API.
//
// # Rules
//
// Slot 0 is never filled: it denies everything.
//
// A group is a set of endpoints that always have the same policy, one per
// identity and named ports. A slot is changed in place only while all its users
// are of one group, and only by a small delta that adds or removes lines
// without changing any, and adds to other planes (identity and direction) than
// it removes from. Additions come first, denies before allows and long
// prefixes before short ones; then removals, allows first and short prefixes
// first. Then no packet gets through that both the former and the new policy
// deny. A delta of any size is made in place if it only adds or only removes
// lines that allow, as then no packet is denied either that both policies allow,
// and if it is no more work than another slot. Everything else goes into another
// slot, whole.
//
// The caller has switched its endpoint to another slot before it calls Release.
// A released slot's map is replaced by a fresh one, but only after a grace
// period, so that no program still looks it up under the old number, and is used again
// only after another one, when no program can still read the old map.
//
// Inserting into the outer array waits for a grace period (8 to 24 ms), so empty
// maps are kept ready; a goroutine adds more in batches. Released slots beyond
// that number give their maps back and share one that stays empty, with the last slot,
// which holds it always. No descriptor of a
// slot's map is kept: it is opened by its id while it is written or read.
//
// Nobody else writes to the maps; Repair, called now and then, mends what was
// done to them all the same.
//
// # After a restart
//
// The outer array is recognised by its pin path <root>/maps/weir_policy, a slot
// by its number in the endpoint's configuration. Adopt takes it over as it is;
// its contents are read when the first policy result is there. A map that several
// slots share is no policy, so these are free at once. ReleaseUnadopted
// frees what no restored endpoint claimed, and what was kept ready is so again. Until
// then only slots without a map of their own are used, and none is filled ahead.
//
// # Try it
//
//	go test ./pkg/maps/policymap
package policymap
