package policy

import (
	"cmp"
	"slices"

	"github.com/weirnet/weir/pkg/policy/types"
)

// Fit returns what of the map state is to be put into a map with room for limit
// lines, and how many lines are left out: every line that denies or passes, the
// defaults and the local node's, then the strongest that allow. Without lines that allow, less is
// allowed and never more: whatever decides in their place is weaker, and where
// they did not decide they are not missed. It returns nil where not even the
// lines that must be there have room; everything has to be denied then.
func (m MapState) Fit(limit int) (fits MapState, left int) {
	if len(m) <= limit {
		return m, 0
	}
	var allows []types.Key
	fits = make(MapState, limit)
	for k, e := range m {
		if e.Verdict == types.Allow && e.Precedence > types.ImplicitPrecedence {
			allows = append(allows, k)
			continue
		}
		fits[k] = e
	}
	if len(fits) > limit {
		return nil, len(m)
	}
	slices.SortFunc(allows, func(a, b types.Key) int {
		return cmp.Or(cmp.Compare(m[b].Precedence, m[a].Precedence), cmp.Compare(m[a].Rank, m[b].Rank), compareKeys(a, b))
	})
	for _, k := range allows[:limit-len(fits)] {
		fits[k] = m[k]
	}
	return fits, len(m) - limit
}
