// Package version holds the one version number of all binaries.
//
// # What
//
// The release and, where the Go toolchain recorded it, the revision of the source.
//
// # Neighbours
//
// Printed by every binary and sent with every API call.
//
// # Rules
//
// One number for all binaries of a release.
//
// # Try it
//
//	bin/weir version
package version

import "runtime/debug"

// Release is the semantic version of this tree.
const Release = "0.1.0-dev"

// String returns the release with the source revision behind a plus sign,
// where the toolchain recorded one.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Release
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return Release + "+" + s.Value[:12]
		}
	}
	return Release
}
