package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/testfile"
	"github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/spell"
)

func (a *app) policyDiff() *cobra.Command {
	o := &offline{}
	var ports []string
	var pod string
	c := o.flags(&cobra.Command{Use: "diff OLD NEW", Short: "say what another folder of policies would change, without an agent", Args: exactArgs(2),
		Long: "OLD and NEW are folders of YAML with pods and policies. Of the pods and hosts that both have it prints which\n" +
			"connections change their verdict, by which rules, and which pods become isolated or are so no longer. Asked are\n" +
			"the declared ports, one of each part of the port space that the rules tell apart, and one that no rule names; or\n" +
			"those of --port. Exit code 1 where there is a difference. Where more than 20,000,000 connections may differ, their\n" +
			"verdicts are not compared, and their number is printed instead: narrow it with --pod or --port.\n\n" + offlineHelp,
		Example: "  weir policy diff examples/shop /tmp/shop-next",
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := o.diff(args[0], args[1], pod, ports)
			if err != nil {
				return err
			}
			if err := a.show(diffModel(d), func() error { return a.writeDiff(d) }); err != nil {
				return err
			}
			if !d.Empty() {
				return errNo
			}
			return nil
		}})
	c.Flags().StringVar(&pod, "pod", "", "only what comes from this pod or host, or goes to it")
	c.Flags().StringArrayVar(&ports, "port", nil, "a port to ask everybody on, such as 80, 53/UDP or ICMP")
	return c
}

func (o *offline) diff(oldPath, newPath, pod string, flag []string) (simulate.Difference, error) {
	old, err := o.read(oldPath)
	if err != nil {
		return simulate.Difference{}, err
	}
	now, err := o.read(newPath)
	if err != nil {
		return simulate.Difference{}, err
	}
	given, err := portsOf(flag, now.Sketch)
	if err != nil {
		return simulate.Difference{}, err
	}
	ask := given
	if flag == nil {
		named := simulate.NamedByRules(old.Sketch.Policies, now.Sketch.Policies)
		before := old.Sketch.Ports()
		ask = func(name string) []simulate.Port { return slices.Concat(before(name), given(name), named) }
	}
	a, err := old.Cluster()
	if err != nil {
		return simulate.Difference{}, err
	}
	b, err := now.Cluster()
	if err != nil {
		return simulate.Difference{}, err
	}
	if pod, err = namedIn(pod, a, b); err != nil {
		return simulate.Difference{}, err
	}
	return simulate.Diff(a, b, ask, pod)
}

// namedIn is the pod or host that the flag --pod names in one of the clusters.
func namedIn(pod string, a, b *simulate.Cluster) (string, error) {
	if pod == "" {
		return "", nil
	}
	name, err := testfile.Named(b, pod)
	if err != nil {
		if name, inOld := testfile.Named(a, pod); inOld == nil {
			return name, nil
		}
		return "", fmt.Errorf("--pod: %w", err)
	}
	return name, nil
}

// The difference as JSON.
type (
	diffAnswer struct {
		Verdicts  []diffVerdict   `json:"verdicts"`
		Isolation []diffIsolation `json:"isolation"`
		Gone      []string        `json:"gone"`
		Came      []string        `json:"came"`
		NotAsked  int             `json:"notAsked"` // connections that were too many to ask about
	}
	diffVerdict struct {
		From     string      `json:"from"`
		To       string      `json:"to"`
		Port     uint16      `json:"port"`
		Proto    string      `json:"proto"`
		Families []string    `json:"families"`
		Old      diffOutcome `json:"old"`
		New      diffOutcome `json:"new"`
	}
	diffOutcome struct {
		Verdict string   `json:"verdict"`
		Rules   []string `json:"rules"`
	}
	diffIsolation struct {
		Pod       string   `json:"pod"`
		Direction string   `json:"direction"`
		Isolated  bool     `json:"isolated"`
		By        []string `json:"by"`
	}
)

func diffModel(d simulate.Difference) diffAnswer {
	out := diffAnswer{Verdicts: []diffVerdict{}, Isolation: []diffIsolation{}, Gone: append([]string{}, d.Gone...), Came: append([]string{}, d.Came...), NotAsked: d.NotAsked}
	outcome := func(o simulate.Outcome) diffOutcome {
		m := diffOutcome{o.Verdict.String(), []string{}}
		for _, r := range o.Rules() {
			m.Rules = append(m.Rules, r.String())
		}
		return m
	}
	for _, p := range d.Pairs {
		out.Verdicts = append(out.Verdicts, diffVerdict{p.From, p.To, p.Port, p.Proto.String(), p.Families, outcome(p.Old), outcome(p.New)})
	}
	for _, i := range d.Isolations {
		out.Isolation = append(out.Isolation, diffIsolation{i.Pod, i.Direction.String(), i.Isolated, resources(i.By)})
	}
	return out
}

func resources(rs []types.Resource) []string {
	out := make([]string, len(rs))
	for i, r := range rs {
		out[i] = r.Placed()
	}
	return out
}

func (a *app) writeDiff(d simulate.Difference) error {
	if d.NotAsked > 0 {
		fmt.Fprintf(a.out, "verdicts not compared: %d connections may differ, too many to ask about; narrow it with --pod or --port\n", d.NotAsked)
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"gone, not compared", d.Gone}, {"new, not compared", d.Came}} {
		if len(list.names) > 0 {
			fmt.Fprintf(a.out, "%s: %s\n", list.what, strings.Join(list.names, ", "))
		}
	}
	for _, i := range d.Isolations {
		what := "becomes isolated by"
		if !i.Isolated {
			what = "is no longer isolated by"
		}
		fmt.Fprintf(a.out, "%s %s %s %s\n", i.Pod, i.Direction, what, strings.Join(resources(i.By), ", "))
	}
	for _, p := range d.Pairs {
		fmt.Fprintf(a.out, "%s -> %s %d/%s (%s): %s becomes %s\n    was %s\n    now %s\n", p.From, p.To, p.Port, p.Proto,
			strings.Join(p.Families, ", "), p.Old.Verdict, p.New.Verdict, p.Old, p.New)
	}
	_, err := fmt.Fprintf(a.out, "%s and %s differ\n", spell.Count(len(d.Pairs), "verdict"), spell.Count(len(d.Isolations), "isolation"))
	return err
}

// writeTables prints truth tables as the lab does.
func (a *app) writeTables(tables []simulate.Table) error {
	for _, t := range tables {
		out := lab.Table{Title: t.Family, Columns: t.Columns}
		for _, r := range t.Rows {
			out.Rows = append(out.Rows, lab.Row(r))
		}
		if err := out.Write(a.out); err != nil {
			return err
		}
	}
	return nil
}
