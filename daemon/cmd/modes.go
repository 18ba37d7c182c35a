package cmd

import (
	"slices"

	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// strictest lists the modes so that each allows what those before it do.
var strictest = []policytypes.Mode{policytypes.ModeAlways, policytypes.ModeDefault, policytypes.ModeNever}

// laxer tells whether a mode allows more than another.
func laxer(mode, than policytypes.Mode) bool {
	return slices.Index(strictest, mode) > slices.Index(strictest, than)
}
