package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
)

func (a *app) status() *cobra.Command {
	var all bool
	c := &cobra.Command{Use: "status", Short: "say whether the agent is well, then only what is not",
		Long: "Prints a verdict first, then each part that is not well with the next command to run.\nExit code 1 where something fails.",
		Args: exactArgs(0), RunE: func(c *cobra.Command, _ []string) error { return a.runStatus(c, all) }}
	c.Flags().BoolVar(&all, "all", false, "also list the parts that are well")
	return c
}

func (a *app) runStatus(c *cobra.Command, all bool) error {
	agent := a.agent()
	s, err := agent.Status(c.Context())
	if err != nil {
		return err
	}
	err = a.show(s, func() error {
		fmt.Fprintf(a.out, "%s: %s\n", s.Verdict, s.Summary)
		fmt.Fprintf(a.out, "endpoints: %d, ready %d, degraded %d\n", s.Endpoints.Total, s.Endpoints.Ready, s.Endpoints.Degraded)
		for _, p := range s.Components {
			if p.State == gen.StateOk && !all {
				continue
			}
			fmt.Fprintln(a.out, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", p.Name, p.State, p.Message), ": "))
			if p.Next != "" {
				fmt.Fprintf(a.out, "  next: %s\n", p.Next)
			}
		}
		return nil
	})
	if err == nil && s.Verdict == gen.StateFailing {
		return errNo
	}
	return err
}
