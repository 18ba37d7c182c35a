package cmd

import (
	"fmt"
	"slices"

	"github.com/weirnet/weir/pkg/policy"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// portName is a name that a rule gives in its list of ports, of any protocol.
type portName struct{ rule, name string }

// unknownPorts are the names of ports that match nothing for any of the node's
// pods that the rule governs, sorted. Such a name opens nothing, which is right,
// but is hardly what its author meant.
func (a *agent) unknownPorts() []string {
	asked, missing, text := map[portName]int{}, map[portName]int{}, map[portName]string{}
	for _, row := range a.endpoints.Manager.Rows() {
		if !row.State.Alive() || row.Identity == 0 {
			continue
		}
		answer, err := a.repo.Resolve(subject(row))
		if err != nil {
			continue // the endpoint says so itself
		}
		unresolved := map[policytypes.NamedPort][]string{}
		for _, u := range answer.Policy.UnresolvedPorts(a.repo.Index()) {
			unresolved[u.Port] = append(unresolved[u.Port], u.Rule.Key())
		}
		for _, d := range []*policy.DirectionPolicy{&answer.Policy.Ingress, &answer.Policy.Egress} {
			for i := range d.Rules {
				r := &d.Rules[i]
				known := map[string]bool{} // by name: whether one of its protocols is known
				for _, p := range r.Ports {
					if p.Name != "" {
						n := policytypes.NamedPort{Name: p.Name, Proto: p.Proto}
						known[p.Name] = known[p.Name] || !slices.Contains(unresolved[n], r.Ref.Key())
					}
				}
				for name, yes := range known {
					k := portName{r.Ref.Key(), name}
					asked[k]++
					text[k] = fmt.Sprintf("%q in %s", name, r.Ref)
					if !yes {
						missing[k]++
					}
				}
			}
		}
	}
	var out []string
	for k, n := range missing {
		if n == asked[k] {
			out = append(out, text[k])
		}
	}
	slices.Sort(out)
	return out
}
