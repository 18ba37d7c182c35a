package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/folder"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/testfile"
	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// offline is the flags of commands that judge folders without an agent.
type offline struct{ enforcement, cluster, node string }

// flags adds them to a command.
func (o *offline) flags(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&o.enforcement, "policy-enforcement", "default", "default, always or never")
	c.Flags().StringVar(&o.cluster, "cluster-name", clusterName, "name of the cluster, a label of every pod")
	c.Flags().StringVar(&o.node, "node", "", "the Node object of this name is the local node")
	return c
}

const offlineHelp = "Needs no agent, no kernel and no root: the agent's own resolver answers. Pods without an address get one of\n" +
	"10.77.0.0/16 and fd00:77::/64, where the local node, called \"node\", has the first. FOLDER/lab/outside.yaml may\n" +
	"list hosts outside. Folders are read as the agent reads them, with those below."

func (o *offline) read(path string) (*folder.Folder, error) {
	mode, err := types.ParseMode(o.enforcement)
	if err != nil {
		return nil, usageError{"--policy-enforcement: " + err.Error()}
	}
	return folder.Read(path, filesource.Options{ClusterName: o.cluster, NodeName: o.node, Labels: labels.DefaultFilter()}, mode)
}

func (a *app) policyExplain() *cobra.Command {
	o := &offline{}
	var dir, family string
	c := o.flags(&cobra.Command{Use: "explain FROM TO PORT", Short: "say which rule of a folder allows or denies a connection, without an agent", Args: exactArgs(3),
		Long: "FROM and TO are pods (NAMESPACE/NAME, or a name that is unique), hosts, \"node\", or addresses. PORT is a number\n" +
			"or the name of a port of the destination, with /UDP or /SCTP where it is not TCP, or ICMP.\n" + explanationHelp + "\n\n" + offlineHelp,
		Example: "  weir policy explain -f examples/shop ops/scanner shop/api http",
		RunE: func(c *cobra.Command, args []string) error {
			f, err := o.read(dir)
			if err != nil {
				return err
			}
			cluster, err := f.Cluster()
			if err != nil {
				return err
			}
			answers, err := testfile.Ask(cluster, args[0], args[1], args[2], family)
			if err != nil {
				return err
			}
			return a.showExplanations(c, explanations(cluster, answers)...)
		}})
	c.Flags().StringVarP(&dir, "folder", "f", ".", "folder of YAML")
	c.Flags().StringVar(&family, "family", "", "IPv4 or IPv6 (default: both, once where they agree)")
	return c
}

// explanations turns answers into the form of the API; families that agree are
// one.
func explanations(c *simulate.Cluster, answers []testfile.Answer) []gen.Explanation {
	var out []gen.Explanation
	for _, answer := range answers {
		e := answer.Explanation
		m := api.ExplanationModel(api.Explanation{Explanation: e, From: peerModel(c, e.From), To: peerModel(c, e.To)})
		if len(out) > 0 && out[0].Text == m.Text {
			continue
		}
		for _, d := range []*gen.DirectionVerdict{m.Egress, m.Ingress} {
			if d != nil {
				unnumber(d)
			}
		}
		out = append(out, m)
	}
	if len(out) > 1 {
		for i := range out {
			out[i].Text = answers[i].Family + " " + out[i].Text
		}
	}
	return out
}

// unnumber takes out the numbers of rules, which are the simulation's own.
func unnumber(d *gen.DirectionVerdict) {
	d.Rule.ID = 0
	for i := range d.Losers {
		d.Losers[i].ID = 0
	}
}

// peerModel leaves the numbers out: they are the simulation's own.
func peerModel(c *simulate.Cluster, p explain.Peer) gen.Peer {
	ls, _ := c.Index.Labels(p.Identity)
	return gen.Peer{Name: p.Name, Address: p.Addr.String(), Labels: ls.Strings()}
}

func (a *app) policyTable() *cobra.Command {
	o := &offline{}
	var pod string
	var ports []string
	c := o.flags(&cobra.Command{Use: "table [FOLDER]", Short: "print the truth table of a folder, without an agent", Args: atMostArgs(1),
		Long: "Who reaches whom on the ports that pods and hosts declare, or on those of --port, in the form of weir lab probe:\n" +
			". allowed, I denied at ingress, E denied at egress, B both, - nothing to ask. ICMP is the ping of each family.\n" +
			"A table of more than 10,000,000 cells is refused; with --pod it becomes two, what comes from the pod and what goes to it.\n\n" + offlineHelp,
		Example: "  weir policy table examples/shop --pod shop/api",
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := o.read(folderArg(args))
			if err != nil {
				return err
			}
			cluster, err := f.Cluster()
			if err != nil {
				return err
			}
			if len(f.Sketch.Pods) == 0 {
				return fmt.Errorf("%s has no pods, so there is nothing to ask; add Pod objects, those of tests do not count", f.Path)
			}
			if pod != "" {
				if pod, err = testfile.Named(cluster, pod); err != nil {
					return fmt.Errorf("--pod: %w", err)
				}
			}
			portsOf, err := portsOf(ports, f.Sketch)
			if err != nil {
				return err
			}
			tables, err := cluster.Tables(portsOf, pod)
			if err != nil {
				return err
			}
			return a.show(tables, func() error { return a.writeTables(tables) })
		}})
	c.Flags().StringVar(&pod, "pod", "", "only what comes from this pod or host, or goes to it")
	c.Flags().StringArrayVar(&ports, "port", nil, "a port to ask everybody on, such as 80, 53/UDP or ICMP, instead of the declared ones")
	return c
}

func folderArg(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// portsOf gives the declared ports, or those of the flag.
func portsOf(flag []string, s simulate.Sketch) (func(string) []simulate.Port, error) {
	var given []simulate.Port
	for _, text := range flag {
		p, err := testfile.ParsePort(text)
		if err != nil {
			return nil, usageError{"--port: " + err.Error()}
		}
		if p.Proto == wtypes.ProtoICMP { // each is asked in its family
			given = append(given, simulate.Port{Proto: wtypes.ProtoICMP, Port: 8}, simulate.Port{Proto: wtypes.ProtoICMPv6, Port: 128})
			continue
		}
		if p.Number == 0 {
			return nil, usageError{fmt.Sprintf("--port %s: give a number", text)}
		}
		given = append(given, simulate.Port{Proto: p.Proto, Port: p.Number})
	}
	if given != nil {
		return func(string) []simulate.Port { return given }, nil
	}
	return s.Ports(), nil
}
