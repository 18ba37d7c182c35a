package spell

import (
	"fmt"
	"strings"
)

// Count is a number of things in words: "1 verdict", "2 verdicts", "2 policies".
// The thing's plural ends in s.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if stem, ok := strings.CutSuffix(thing, "cy"); ok {
		thing = stem + "cie"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
