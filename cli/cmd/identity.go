package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/identity"
)

func (a *app) identity() *cobra.Command {
	var labels []string
	list := &cobra.Command{Use: "list", Short: "list identities with their labels", Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			agent := a.agent()
			ids, err := agent.Identities(c.Context(), labels)
			if err != nil {
				return err
			}
			return a.identities(ids)
		}}
	list.Flags().StringArrayVarP(&labels, "label", "l", nil, "only identities with this label, such as k8s:app=web")
	get := &cobra.Command{Use: "get ID", Short: "show one identity", Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id, err := identity.Parse(args[0])
			if err != nil {
				return usageError{err.Error()}
			}
			agent := a.agent()
			one, err := agent.Identity(c.Context(), uint32(id))
			if err != nil {
				return err
			}
			return a.identities([]gen.Identity{one})
		}}
	return group("identity", "list and look into identities", list, get)
}

func (a *app) identities(ids []gen.Identity) error {
	return a.show(ids, func() error {
		var lines [][]string
		for _, i := range ids {
			lines = append(lines, []string{fmt.Sprint(i.ID), or(i.Scope), fmt.Sprint(i.References), joined(i.Labels)})
		}
		return a.rows("ID SCOPE REFERENCES LABELS", lines)
	})
}

func (a *app) ip() *cobra.Command {
	var addr string
	list := &cobra.Command{Use: "list", Short: "list prefixes and the identities that they stand for", Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			agent := a.agent()
			params := gen.ListIPsParams{}
			if addr != "" {
				params.IP = &addr
			}
			entries, err := agent.IPs(c.Context(), params)
			if err != nil {
				return err
			}
			return a.show(entries, func() error {
				var lines [][]string
				for _, e := range entries {
					where := "-"
					if e.PrefixIdentity != 0 {
						where = fmt.Sprint(e.PrefixIdentity)
					}
					lines = append(lines, []string{e.Prefix, fmt.Sprint(e.Identity), where, e.Source, joined(e.Labels)})
				}
				return a.rows("PREFIX IDENTITY PREFIX-IDENTITY SOURCE LABELS", lines)
			})
		}}
	list.Flags().StringVar(&addr, "address", "", "only the entry that this address resolves to")
	return group("ip", "list what addresses stand for", list)
}
