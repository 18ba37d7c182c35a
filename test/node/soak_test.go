package node

import "os"

// long reports whether the long forms of the tests run, as "make soak" has it.
func long() bool { return os.Getenv("WEIR_SOAK") != "" }

// times is how often a loop runs: that many times, and so many in the long form.
func times(short, soak int) int {
	if long() {
		return soak
	}
	return short
}
