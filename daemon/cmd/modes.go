package cmd

import (
	"fmt"
	"strings"

	"github.com/weirnet/weir/pkg/endpoint"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/spell"
)

// strictest lists the modes so that each allows what those before it do.
var strictest = []policytypes.Mode{policytypes.ModeAlways, policytypes.ModeDefault, policytypes.ModeNever}

// ownModes tells which endpoints have a mode of their own; loose: one of them
// allows more than the node's would. The text is empty where none has.
func ownModes(node policytypes.Mode, rows []*endpoint.Row) (text string, loose bool) {
	count, all := map[policytypes.Mode]int{}, 0
	for _, r := range rows {
		if m, own := r.EnforcementInForce().Own(); own && m != node {
			count[m]++
			all++
		}
	}
	var each []string
	laxer := false
	for _, m := range strictest {
		if n := count[m]; n > 0 {
			each = append(each, fmt.Sprintf("%s %d", m, n))
			loose = loose || laxer
		}
		laxer = laxer || m == node
	}
	if all == 0 {
		return "", false
	}
	return fmt.Sprintf("%s in another mode than the node's, which is %s: %s", spell.Count(all, "endpoint"), node, strings.Join(each, ", ")), loose
}
