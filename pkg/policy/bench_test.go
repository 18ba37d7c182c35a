package policy_test

import (
	"fmt"
	"testing"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// many is 3,000 rules over 1,000 identities; each rule selects share of them.
func many(share int) ([]*types.Policy, *policy.Index) {
	ids := identity.ReservedIdentities()
	for i := range 1000 {
		ids[identity.NumericIdentity(1000+i)] = labels.NewLabelArray(labels.New(labels.SourceK8s, "app", fmt.Sprint(i/share)))
	}
	var policies []*types.Policy
	var peers []types.Peer
	for i := range 3000 {
		s := labels.Equals(labels.New(labels.SourceK8s, "app", fmt.Sprint(i%(1000/share))))
		peers = append(peers, types.Peer{Labels: &s})
		p := onePolicy(types.Rule{Direction: types.Ingress, Verdict: types.Allow, Peers: peers[i : i+1],
			Ports: []types.Port{{Proto: wtypes.ProtoTCP, Port: uint16(1000 + i)}}})
		p.Resource.Name = fmt.Sprintf("n%04d", i)
		p.Rules[0].Ref.Resource = p.Resource
		policies = append(policies, p)
	}
	x, _ := policy.NewIndex(ids).Apply(policy.Events{Select: peers})
	return policies, x
}

func number(types.RuleRef) types.RuleID { return 1 }

func BenchmarkMapStateOf3000RulesAnd1000Identities(b *testing.B) {
	for _, share := range []int{1, 20, 1000} {
		b.Run(fmt.Sprintf("%d-identities-per-rule", share), func(b *testing.B) {
			policies, x := many(share)
			sp := policy.Resolve(policy.Subject{}, policies, types.ModeDefault, number)
			for b.Loop() {
				ms, err := sp.MapState(x)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(ms)), "entries")
			}
		})
	}
}

func BenchmarkResolve3000Policies(b *testing.B) {
	policies, _ := many(20)
	for b.Loop() {
		policy.Resolve(policy.Subject{}, policies, types.ModeDefault, number)
	}
}

func BenchmarkApplyOneIdentityUnder3000Rules(b *testing.B) {
	_, x := many(1)
	a := labels.NewLabelArray(labels.New(labels.SourceK8s, "app", "7"))
	for b.Loop() {
		x.Apply(policy.Events{Added: identity.IdentityMap{9999: a}})
	}
}
