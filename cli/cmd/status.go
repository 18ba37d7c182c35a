package cmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/spell"
)

// statusPoll is how often --wait asks; fewAlike is how many warnings of one kind are
// printed without --all.
const (
	statusPoll = 100 * time.Millisecond
	fewAlike   = 5
)

func (a *app) status() *cobra.Command {
	var all bool
	var wait time.Duration
	c := &cobra.Command{Use: "status", Short: "say whether the agent is well, then only what is not",
		Long: "Prints a verdict first, then each warning with what it breaks, since when, and the next command to run. A warning breaks\n" +
			"enforcement (a policy is not enforced as written), pods (a pod has no network, less of it, or the wrong one), or nothing.\n" +
			"Exit code 0 where there is no warning, or only such as break nothing; 1 where one breaks something; 2 where no agent\n" +
			"answers or it is starting, after --wait where that is given.",
		Args: exactArgs(0), RunE: func(c *cobra.Command, _ []string) error { return a.runStatus(c, all, wait) }}
	c.Flags().BoolVar(&all, "all", false, fmt.Sprintf("list every warning, also where more than %d are of one kind", fewAlike))
	c.Flags().DurationVar(&wait, "wait", 0, "wait until the agent is ready, at most so long (30s)")
	return c
}

func (a *app) runStatus(c *cobra.Command, all bool, wait time.Duration) error {
	s, err := a.askStatus(c.Context(), wait)
	if err != nil {
		return err
	}
	err = a.show(s, func() error {
		fmt.Fprintf(a.out, "%s: %s\n", s.Verdict, headline(s))
		fmt.Fprintf(a.out, "endpoints: %d, ready %d, degraded %d\n", s.Endpoints.Total, s.Endpoints.Ready, s.Endpoints.Degraded)
		kinds := map[string]int{}
		for _, p := range s.Components {
			kinds[p.Name]++
		}
		seen := map[string]int{}
		for _, p := range s.Components {
			if seen[p.Name]++; !all && kinds[p.Name] > fewAlike && seen[p.Name] > fewAlike {
				if seen[p.Name] == kinds[p.Name] {
					fmt.Fprintf(a.out, "%s: %d more; weir status --all lists them\n", p.Name, kinds[p.Name]-fewAlike)
				}
				continue
			}
			a.printWarning(p, time.Now())
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !s.Ready:
		return exitError(exitFailed)
	case slices.ContainsFunc(s.Components, breaks):
		return errNo
	}
	return nil
}

// askStatus asks once, or until the agent is ready or the time is over.
func (a *app) askStatus(ctx context.Context, wait time.Duration) (gen.Status, error) {
	agent := a.agent()
	defer agent.Close()
	for deadline := time.Now().Add(wait); ; {
		s, err := agent.Status(ctx)
		if err == nil && s.Ready || time.Now().After(deadline) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(statusPoll):
		}
	}
}

// breaks reports whether a part of the status breaks something.
func breaks(p gen.Component) bool {
	return p.State == gen.StateFailing || p.Breaks == gen.BreaksPods || p.Breaks == gen.BreaksEnforcement
}

// headline says in a sentence how it is.
func headline(s gen.Status) string {
	count := map[gen.Breaks]int{}
	warnings := 0
	for _, p := range s.Components {
		if p.State == gen.StateWarning || p.State == gen.StateFailing {
			warnings++
			count[p.Breaks]++
		}
	}
	var parts []string
	for _, b := range []gen.Breaks{gen.BreaksEnforcement, gen.BreaksPods, gen.BreaksNothing} {
		verb := "break"
		if count[b] == 1 {
			verb = "breaks"
		}
		if count[b] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s %s", count[b], verb, b))
		}
	}
	switch {
	case !s.Ready || warnings == 0 || len(parts) == 0:
		return s.Summary
	case len(parts) == 1 && warnings == 1:
		return fmt.Sprintf("1 warning, which %s", strings.TrimPrefix(parts[0], "1 "))
	}
	return fmt.Sprintf("%s: %s", spell.Count(warnings, "warning"), strings.Join(parts, ", "))
}

// printWarning prints a part that is not well: what is wrong, what that breaks and
// since when, and what to do.
func (a *app) printWarning(p gen.Component, now time.Time) {
	if p.State == gen.StateOk {
		return
	}
	text := p.Message
	if p.Subject != "" && !strings.Contains(text, p.Subject) {
		text = p.Subject + ": " + text
	}
	fmt.Fprintf(a.out, "%s: %s: %s\n", p.Name, p.State, text)
	var facts []string
	if p.Breaks != "" {
		facts = append(facts, "breaks "+string(p.Breaks))
	}
	if !p.Since.IsZero() {
		facts = append(facts, fmt.Sprintf("since %s (%s)", p.Since.Local().Format(time.DateTime), age(now.Sub(p.Since))))
	}
	if len(facts) > 0 {
		fmt.Fprintf(a.out, "  %s\n", strings.Join(facts, ", "))
	}
	if p.Next != "" {
		fmt.Fprintf(a.out, "  next: %s\n", p.Next)
	}
}

// age is a duration as people tell it.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d/time.Second)))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d/time.Hour))
	}
	return spell.Count(int(d/(24*time.Hour)), "day")
}
