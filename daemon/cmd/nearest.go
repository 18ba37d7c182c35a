package cmd

import (
	"iter"
	"maps"

	"github.com/spf13/pflag"

	"github.com/weirnet/weir/pkg/spell"
)

// nearest returns the setting whose name takes the fewest edits to reach.
func nearest(name string, fs *pflag.FlagSet) string {
	best, cost := "", 1<<30
	fs.VisitAll(func(f *pflag.Flag) {
		if d := spell.Distance(name, f.Name); d < cost {
			best, cost = f.Name, d
		}
	})
	return best
}

func mapKeys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }
