package api

import (
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy"
	"github.com/weirnet/weir/pkg/policy/explain"
)

// ExplanationModel is the wire form of an explanation. "weir policy explain"
// prints the same without an agent.
func ExplanationModel(e Explanation) gen.Explanation {
	return gen.Explanation{From: e.From, To: e.To, Port: e.Port, Proto: e.Proto.String(), Text: e.String(),
		Verdict: verdictModel(e.Verdict), Egress: judgementModel(e.Egress), Ingress: judgementModel(e.Ingress)}
}

func judgementModel(j *explain.Judgement) *gen.DirectionVerdict {
	if j == nil {
		return nil
	}
	out := &gen.DirectionVerdict{Verdict: verdictModel(j.Verdict), Rule: matchModel(j.Rule, ""), Isolating: refModels(j.Isolating)}
	for _, l := range j.Losers {
		out.Losers = append(out.Losers, matchModel(l.Match, l.Why))
	}
	for _, c := range j.Changes {
		change := gen.VerdictChange{Kind: gen.VerdictChangeKind(c.Kind), Text: c.Text, Alone: c.Alone}
		if c.Rule != nil {
			change.Rule = RuleModel(0, *c.Rule)
		}
		out.Changes = append(out.Changes, change)
	}
	return out
}

func matchModel(m policy.Match, why string) gen.Rule {
	r := RuleModel(m.Entry.Rule, m.Ref)
	r.Says, r.Why = gen.RuleSays(m.Entry.Verdict.String()), why
	return r
}
