package cmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy/types"
)

const endpointIDHelp = "ID is a number, or one of pod-name:NAMESPACE/NAME, container-id:ID, ipv4:ADDRESS, ipv6:ADDRESS."

func (a *app) endpoint() *cobra.Command {
	var labels, states []string
	list := &cobra.Command{Use: "list", Short: "list the pods that this node's agent manages", Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			var wanted []gen.EndpointState
			for _, s := range states {
				wanted = append(wanted, gen.EndpointState(s))
			}
			return a.endpointList(c, labels, wanted)
		}}
	list.Flags().StringArrayVarP(&labels, "label", "l", nil, "only endpoints with this label, such as k8s:app=web")
	list.Flags().StringArrayVar(&states, "state", nil, "only endpoints in this state")
	get := &cobra.Command{Use: "get ID", Short: "show one endpoint", Long: endpointIDHelp, Args: exactArgs(1), RunE: a.endpointGet}
	log := &cobra.Command{Use: "log ID", Short: "show the endpoint's status log", Long: endpointIDHelp, Args: exactArgs(1), RunE: a.endpointLog}
	timeline := &cobra.Command{Use: "timeline ID", Short: "show the stations that the endpoint passed, with times", Long: endpointIDHelp, Args: exactArgs(1), RunE: a.endpointTimeline}
	audit := &cobra.Command{Use: "audit ID on|off", Short: "let through what an endpoint's policy denies, and tell of it", Args: exactArgs(2), RunE: a.endpointAudit,
		Long: endpointIDHelp + "\nIn audit mode packets that a rule denies pass, with an event of type audit that names the rule (weir monitor).\nIt outlives the agent, and weir status warns of it."}
	enforcement := &cobra.Command{Use: "enforcement ID node|default|always|never", Short: "hold an endpoint to its policies in a mode of its own", Args: exactArgs(2), RunE: a.endpointEnforcement,
		Long: endpointIDHelp + "\nThe mode is for this endpoint alone: default isolates it once a policy asks for it, always isolates it in any case,\n" +
			"never allows everything and looks at no rule. node gives it the mode of the node again (policy-enforcement).\n" +
			"Open connections are judged again. It outlives the agent, and weir status warns where it allows more than the node's mode."}
	return group("endpoint", "list and look into endpoints", list, get, log, timeline, audit, enforcement)
}

func (a *app) endpointList(c *cobra.Command, labels []string, wanted []gen.EndpointState) error {
	agent := a.agent()
	eps, err := agent.Endpoints(c.Context(), labels, wanted)
	if err != nil {
		return err
	}
	return a.show(eps, func() error {
		var lines [][]string
		for _, e := range eps {
			lines = append(lines, []string{
				fmt.Sprint(e.ID), podName(e), fmt.Sprint(e.Identity.ID), or(e.Addressing.Ipv4), or(e.Addressing.Ipv6), string(e.State),
				or(string(e.Policy.Enforcement)), auditWord(e), string(e.Policy.Ingress), string(e.Policy.Egress), fmt.Sprint(e.Policy.Revision), or(e.StateReason),
			})
		}
		return a.rows("ID POD IDENTITY IPV4 IPV6 STATE MODE AUDIT INGRESS EGRESS REVISION REASON", lines)
	})
}

func (a *app) endpointAudit(c *cobra.Command, args []string) error {
	if args[1] != "on" && args[1] != "off" {
		return usageError{fmt.Sprintf("audit mode %q is not known; give on or off", args[1])}
	}
	on := args[1] == "on"
	e, err := a.agent().ChangeEndpoint(c.Context(), args[0], gen.EndpointSettings{Audit: &on})
	if err != nil {
		return err
	}
	return a.show(e, func() error {
		_, err := fmt.Fprintf(a.out, "endpoint %d (%s): audit %s\n", e.ID, podName(e), args[1])
		return err
	})
}

func (a *app) endpointEnforcement(c *cobra.Command, args []string) error {
	mode, err := types.ParseEnforcement(args[1])
	if err != nil {
		return err
	}
	e, err := a.agent().ChangeEndpoint(c.Context(), args[0], gen.EndpointSettings{Enforcement: gen.EndpointEnforcement(mode.String())})
	if err != nil {
		return err
	}
	return a.show(e, func() error {
		_, err := fmt.Fprintf(a.out, "endpoint %d (%s): enforcement %s\n", e.ID, podName(e), e.Policy.Enforcement)
		return err
	})
}

func podName(e gen.Endpoint) string {
	if e.Pod.Name == "" {
		return e.ContainerID
	}
	return e.Pod.Namespace + "/" + e.Pod.Name
}

// auditWord says in a word whether audit mode is on.
func auditWord(e gen.Endpoint) string {
	if e.Policy.Audit {
		return "on"
	}
	return "-"
}

// auditLine says what audit mode does and how to end it; empty where it is off.
func auditLine(e gen.Endpoint) string {
	if !e.Policy.Audit {
		return ""
	}
	return fmt.Sprintf("on: what the policies deny is let through, and only told of; end it with: weir endpoint audit %d off", e.ID)
}

func (a *app) endpointGet(c *cobra.Command, args []string) error {
	agent := a.agent()
	e, err := agent.Endpoint(c.Context(), args[0])
	if err != nil {
		return err
	}
	return a.show(e, func() error {
		for _, line := range [][2]string{
			{"id", fmt.Sprint(e.ID)}, {"pod", podName(e)}, {"state", string(e.State)}, {"reason", e.StateReason},
			{"identity", fmt.Sprint(e.Identity.ID)}, {"labels", strings.Join(e.Labels, "\n                ")},
			{"ipv4", e.Addressing.Ipv4}, {"ipv6", e.Addressing.Ipv6}, {"container", e.ContainerID}, {"netns", e.Netns},
			{"interface", fmt.Sprintf("%s (%d) to %s, %s", e.Interface.HostName, e.Interface.HostIndex, e.Interface.ContainerName, e.Interface.Mac)},
			{"policy", fmt.Sprintf("revision %d, %d entries in slot %d, ingress %s, egress %s", e.Policy.Revision, e.Policy.Entries, e.Policy.Slot, e.Policy.Ingress, e.Policy.Egress)},
			{"enforcement", string(e.Policy.Enforcement)}, {"audit", auditLine(e)}, {"degraded", e.Policy.DegradedReason}, {"last station", e.LastStation},
		} {
			if line[1] != "" {
				fmt.Fprintf(a.out, "%-14s  %s\n", line[0], line[1])
			}
		}
		return nil
	})
}

func (a *app) endpointLog(c *cobra.Command, args []string) error {
	agent := a.agent()
	entries, err := agent.EndpointLog(c.Context(), args[0])
	if err != nil {
		return err
	}
	return a.show(entries, func() error {
		var lines [][]string
		for _, e := range entries {
			lines = append(lines, []string{e.Time.Format(time.RFC3339Nano), or(string(e.Code)), or(e.State), or(e.Station), e.Message})
		}
		return a.rows("TIME CODE STATE STATION MESSAGE", lines)
	})
}

func (a *app) endpointTimeline(c *cobra.Command, args []string) error {
	agent := a.agent()
	stations, err := agent.EndpointTimeline(c.Context(), args[0])
	if err != nil {
		return err
	}
	return a.show(stations, func() error {
		var lines [][]string
		for _, s := range stations {
			started, took := "-", "-"
			if !s.Started.IsZero() {
				started = s.Started.Format("15:04:05.000000")
				took = (time.Duration(s.DurationMicros) * time.Microsecond).String()
			}
			lines = append(lines, []string{s.Name, started, took, or(s.Error)})
		}
		return a.rows("STATION STARTED TOOK ERROR", lines)
	})
}
