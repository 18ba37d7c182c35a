package simulate

import (
	"fmt"

	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
)

// MapState returns what the kernel would hold for a pod's end. Pods that are
// governed alike share one.
func (c *Cluster) MapState(e End) (policy.MapState, error) {
	m, ok := c.states[e.Name]
	if ok {
		return m, nil
	}
	sp := c.Policy(e)
	key := stateKey(sp)
	if m, ok = c.shared[key]; !ok {
		c.selectPeers()
		var err error
		if m, err = sp.MapState(c.Index); err != nil {
			return m, fmt.Errorf("policy of %s: %w", e.Name, err)
		}
		c.shared[key] = m
	}
	c.states[e.Name] = m
	return m, nil
}

// selectPeers has the Index keep what all peers match: many pods' rules name the
// same ones.
func (c *Cluster) selectPeers() {
	if c.selected {
		return
	}
	c.selected = true
	var peers []types.Peer
	for _, p := range c.world.Policies {
		for i := range p.Rules {
			peers = append(peers, p.Rules[i].Peers...)
		}
	}
	c.Index, _ = c.Index.Apply(policy.Events{Select: peers})
}

// Rule returns the rule that has a number in the cluster's map states.
func (c *Cluster) Rule(id types.RuleID) (types.RuleRef, bool) {
	if id == 0 || int(id) > len(c.refs) {
		return types.RuleRef{}, false
	}
	return c.refs[id-1], true
}
