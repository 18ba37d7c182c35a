package policy_test

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// No line is written that others imply: without any of them some packet would be
// decided by another rule. A pass to a tier that says the same may be idle, and
// lines behind a pass are not looked at here.
func TestEveryLineDecidesSomewhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(genWorld(t, false), genPolicies(t), genMode(t))
		for _, state := range states(t, c, c.index) {
			for k, e := range state {
				if k.Stage == types.StageAll && e.Verdict != types.Pass && idle(state, k) {
					t.Fatalf("%s is implied by the others: %v", k, state)
				}
			}
		}
	})
}

// idle reports whether all packets are decided by the same rules without the line.
func idle(state policy.MapState, k types.Key) bool {
	without := maps.Clone(state)
	delete(without, k)
	ids := map[identity.NumericIdentity]bool{k.Identity: true}
	protos := map[wtypes.Proto]bool{k.Proto: true}
	ports := map[int]bool{int(k.Port): true} // where anything may change
	for o := range state {
		if k.Identity == 0 {
			ids[o.Identity] = true
		}
		if k.Proto == wtypes.ProtoAny {
			protos[o.Proto] = true
		}
		ports[int(o.Port)], ports[int(o.Port)+1<<(16-o.PortBits)] = true, true
	}
	if k.Identity == 0 {
		ids[999_999] = true // whom no line is about
	}
	if k.Proto == wtypes.ProtoAny {
		protos[200] = true
		delete(protos, wtypes.ProtoAny)
	}
	for id := range ids {
		for proto := range protos {
			for port := range ports {
				if port < int(k.Port) || port >= int(k.Port)+1<<(16-k.PortBits) {
					continue
				}
				was, now := state.Decide(k.Direction, id, 0, proto, uint16(port)), without.Decide(k.Direction, id, 0, proto, uint16(port))
				if was.Rule != now.Rule || was.Verdict != now.Verdict {
					return false
				}
			}
		}
	}
	return true
}
