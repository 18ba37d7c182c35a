package api

import (
	"strings"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy/types"
)

var ruleKinds = map[types.RuleKind]gen.RuleKind{
	types.KindPolicy: gen.RulePolicy, types.KindDefaultDeny: gen.RuleDefaultDeny, types.KindNotIsolated: gen.RuleNotIsolated,
	types.KindModeNever: gen.RuleModeNever, types.KindModeAlways: gen.RuleModeAlways, types.KindLocalNode: gen.RuleLocalNode, types.KindInit: gen.RuleInit,
	types.KindEndpointNever: gen.RuleEndpointNever, types.KindEndpointAlways: gen.RuleEndpointAlways,
}

// RuleModel is the wire form of a rule and its number. The daemon uses it for events.
func RuleModel(id types.RuleID, ref types.RuleRef) gen.Rule {
	kind, ok := ruleKinds[ref.Kind]
	if !ok {
		kind = gen.RuleUnknown
	}
	out := gen.Rule{ID: uint32(id), Kind: kind, Text: ref.String()}
	switch ref.Kind {
	case types.KindPolicy:
		index := ref.Index
		out.Policy, out.Section, out.Index, out.Line = refModel(ref.Resource), ref.Section, &index, ref.Line
		out.Log = ref.Log
	case types.KindDefaultDeny:
		out.Isolating = refModels(ref.Isolated)
	}
	return out
}

func refModel(r types.Resource) gen.PolicyRef {
	return gen.PolicyRef{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, File: r.File, Line: r.Line}
}

func refModels(rs []types.Resource) []gen.PolicyRef {
	out := make([]gen.PolicyRef, len(rs))
	for i, r := range rs {
		out[i] = refModel(r)
	}
	return out
}

func changeModel(c PolicyChange) gen.PolicyChange {
	return gen.PolicyChange{Revision: c.Revision, Policies: refModels(c.Resources)}
}

func verdictModel(v types.Verdict) gen.Verdict {
	if v == types.Allow {
		return gen.VerdictAllow
	}
	return gen.VerdictDeny
}

func policyModel(p *types.Policy) gen.Policy {
	out := gen.Policy{Ref: refModel(p.Resource), Subject: p.Subject.String(), IsolatesIngress: p.IsolatesIngress,
		IsolatesEgress: p.IsolatesEgress, Rules: []gen.PolicyRule{}}
	for _, r := range p.Rules {
		rule := gen.PolicyRule{Section: r.Ref.Section, Index: r.Ref.Index, Line: r.Ref.Line, Log: r.Ref.Log,
			Direction: gen.Direction(r.Direction.String()), Verdict: verdictModel(r.Verdict)}
		rule.Peers = texts(r.Peers, peerText)
		rule.Ports = texts(r.Ports, types.Port.String)
		out.Rules = append(out.Rules, rule)
	}
	return out
}

// texts keeps the difference between nil (no restriction) and empty (nothing).
func texts[T any](in []T, text func(T) string) *[]string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, v := range in {
		out[i] = text(v)
	}
	return &out
}

func peerText(p types.Peer) string {
	switch {
	case p.Labels != nil:
		if p.Labels.IsEmpty() {
			return "every identity"
		}
		return p.Labels.String()
	case p.CIDR != nil:
		s := p.CIDR.Prefix.String()
		if len(p.CIDR.Except) > 0 {
			except := make([]string, len(p.CIDR.Except))
			for i, e := range p.CIDR.Except {
				except[i] = e.String()
			}
			s += " except " + strings.Join(except, ", ")
		}
		if p.CIDR.Pods {
			s += " (pods too)"
		}
		return s
	}
	return "entity " + p.Entity
}
