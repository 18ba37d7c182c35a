package cmd

import (
	"iter"
	"maps"

	"github.com/spf13/pflag"
)

// nearest returns the setting whose name takes the fewest edits to reach.
func nearest(name string, fs *pflag.FlagSet) string {
	best, cost := "", 1<<30
	fs.VisitAll(func(f *pflag.Flag) {
		if d := edits(name, f.Name); d < cost {
			best, cost = f.Name, d
		}
	})
	return best
}

// edits is the Levenshtein distance between two names.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

func mapKeys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }
