// Package cache gives out identities: exactly one number per label set, counted
// by its users, the same after a restart.
//
// # What
//
// Allocate takes a reference on the number of a label set, Release gives it
// back. Numbers move round robin through the range of their scope. The
// checkpoint identities.json, on a disk that outlives a reboot, remembers them.
//
// # Neighbours
//
// Used by endpoint (who a pod is) and ipcache (prefixes, pods elsewhere). It
// imports labels and identity.
//
// # Rules
//
// A number is on disk before Allocate returns it, so nobody can put a number
// into the kernel that kill -9 would forget. Allocations that wait at the same
// time, and those of one AllocateAll, share one write. A release is not written
// at once: the next write leaves the number out, and a number that is restored
// without need is only held. A number is never given to a second label set while
// it has users, is held for a restored set, was seen in the kernel at start
// (Config.Busy), or was released less than Config.Rest ago. When none is left,
// Allocate fails with ErrExhausted.
//
// # After a restart
//
// New reads the checkpoint, or that of a former build in its place, and holds every
// number for its label set until ReleaseRestored. A damaged checkpoint is set aside
// with a warning. Then Config.Known, from records and kernel, says which number is
// whose; others that can still be read in it are treated as busy, like those in
// Config.Busy, so that no old number changes its meaning.
//
// # Try it
//
//	go test -race ./pkg/identity/cache
package cache
