package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/version"
)

func (a *app) version() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the versions of this binary and of the agent", Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			v := map[string]string{"weir": version.String(), "api": v1.Version}
			if s, err := a.agent().Status(c.Context()); err == nil {
				v["agent"], v["agentApi"] = s.Version, s.APIVersion
			}
			return a.show(v, func() error {
				fmt.Fprintf(a.out, "weir   %s (API %s)\n", v["weir"], v["api"])
				if v["agent"] == "" {
					fmt.Fprintln(a.out, "agent  not running")
					return nil
				}
				fmt.Fprintf(a.out, "agent  %s (API %s)\n", v["agent"], v["agentApi"])
				return nil
			})
		}}
}
