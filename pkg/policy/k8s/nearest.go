package k8s

import (
	"strings"

	"github.com/weirnet/weir/pkg/spell"
)

// nearest returns the known name that a misspelt one probably stands for, or "".
func nearest(name string, known []string) string {
	best, at := "", max(2, len(name)/3)+1
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if len(name) > 64 {
			continue
		}
		if d := spell.Distance(strings.ToLower(name), strings.ToLower(k)); d < at {
			best, at = k, d
		}
	}
	return best
}
