package spell

import "fmt"

// Count is a number of things in words: "1 verdict", "2 verdicts". The thing's
// plural ends in s.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
