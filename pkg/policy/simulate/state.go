package simulate

import (
	"fmt"

	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// MapState returns what the kernel would hold for a pod's end.
func (c *Cluster) MapState(e End) (policy.MapState, error) {
	m, ok := c.states[e.Name]
	if ok {
		return m, nil
	}
	m, err := c.Policy(e).MapState(c.Index)
	if err != nil {
		return m, fmt.Errorf("policy of %s: %w", e.Name, err)
	}
	c.states[e.Name] = m
	return m, nil
}

// Rule returns the rule that has a number in the cluster's map states.
func (c *Cluster) Rule(id types.RuleID) (types.RuleRef, bool) {
	if id == 0 || int(id) > len(c.refs) {
		return types.RuleRef{}, false
	}
	return c.refs[id-1], true
}
