package cases

import (
	"bytes"
	"crypto/sha256"
	"slices"

	"github.com/weirnet/weir/pkg/policy/casefile"
)

// Lowest returns the n cases whose IDs have the lowest SHA-256: the same ones
// every time, and no order of the file decides.
func (s *Set) Lowest(n int) []casefile.Case { return lowest(s.Cases, n) }

// Sample is Lowest of the cases with one step of the suites named.
func (s *Set) Sample(n int, suites ...string) []casefile.Case {
	var some []casefile.Case
	for _, c := range s.Cases {
		if len(c.Steps) == 1 && slices.Contains(suites, c.Suite) {
			some = append(some, c)
		}
	}
	return lowest(some, n)
}

func lowest(cases []casefile.Case, n int) []casefile.Case {
	sorted := slices.Clone(cases)
	slices.SortFunc(sorted, func(a, b casefile.Case) int {
		x, y := sha256.Sum256([]byte(a.ID)), sha256.Sum256([]byte(b.ID))
		return bytes.Compare(x[:], y[:])
	})
	return sorted[:min(n, len(sorted))]
}
