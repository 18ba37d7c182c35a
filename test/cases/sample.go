package cases

import (
	"bytes"
	"crypto/sha256"
	"slices"
)

// Sample returns the n cases with one step, of the suites named, whose IDs have
// the lowest SHA-256: the same ones every time, and no order of the file decides.
func (s *Set) Sample(n int, suites ...string) []Case {
	type hashed struct {
		sum [sha256.Size]byte
		c   Case
	}
	var all []hashed
	for _, c := range s.Cases {
		if len(c.Steps) == 1 && slices.Contains(suites, c.Suite) {
			all = append(all, hashed{sha256.Sum256([]byte(c.ID)), c})
		}
	}
	slices.SortFunc(all, func(a, b hashed) int { return bytes.Compare(a.sum[:], b.sum[:]) })
	out := make([]Case, 0, n)
	for _, h := range all[:min(n, len(all))] {
		out = append(out, h.c)
	}
	return out
}
