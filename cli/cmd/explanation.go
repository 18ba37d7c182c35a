package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
)

// explanationHelp says in which forms "weir why" and "weir policy explain" print.
const explanationHelp = "Prints sentences; with -o table a line per rule, with -o json everything.\nExit code 1 where the connection is denied."

// showExplanations prints explanations, of an agent or of a folder, and turns a
// denial into the answer no.
func (a *app) showExplanations(c *cobra.Command, es ...gen.Explanation) error {
	var err error
	switch {
	case a.format == "json" && len(es) == 1:
		err = a.printJSON(es[0])
	case a.format == "json":
		err = a.printJSON(es)
	case c.Flags().Changed("output"):
		var lines [][]string
		for _, e := range es {
			lines = append(lines, explanationRows(e)...)
		}
		err = a.rows("DIRECTION ROLE SAYS RULE PLACE WHY", lines)
	default:
		for _, e := range es {
			fmt.Fprintln(a.out, strings.TrimRight(e.Text, "\n"))
		}
	}
	for _, e := range es {
		if err == nil && e.Verdict == gen.VerdictDeny {
			return errNo
		}
	}
	return err
}

// explanationRows lists what decided, lost, isolates and would change the verdict.
func explanationRows(e gen.Explanation) [][]string {
	var lines [][]string
	for _, d := range []struct {
		name string
		v    *gen.DirectionVerdict
	}{{"egress", e.Egress}, {"ingress", e.Ingress}} {
		if d.v == nil {
			lines = append(lines, []string{d.name, "not-judged", "-", "-", "-", "-"})
			continue
		}
		rule := func(role string, r gen.Rule, why string) {
			name, where := ruleName(r)
			lines = append(lines, []string{d.name, role, or(string(r.Says)), name, where, or(why)})
		}
		rule("decides", d.v.Rule, "")
		for _, l := range d.v.Losers {
			role := "lost"
			if l.Says == gen.SaysPass {
				role = "pass"
			}
			rule(role, l, l.Why)
		}
		for _, p := range d.v.Isolating {
			lines = append(lines, []string{d.name, "isolates", "-", policyName(p), place(p), "-"})
		}
		for _, ch := range d.v.Changes {
			role := "change"
			if !ch.Alone {
				role = "part-change"
			}
			lines = append(lines, []string{d.name, role, "-", "-", "-", ch.Text})
		}
	}
	return lines
}

// ruleName is a rule without its place, and the place.
func ruleName(r gen.Rule) (name, where string) {
	if r.Kind != gen.RulePolicy || r.Index == nil {
		return string(r.Kind), "-"
	}
	where = place(r.Policy)
	if r.Policy.File != "" && r.Line != 0 {
		where = fmt.Sprintf("%s:%d", r.Policy.File, r.Line)
	}
	return fmt.Sprintf("%s %s[%d]", policyName(r.Policy), r.Section, *r.Index), where
}

func policyName(p gen.PolicyRef) string {
	if p.Namespace == "" {
		return p.Kind + " " + p.Name
	}
	return p.Kind + " " + p.Namespace + "/" + p.Name
}
