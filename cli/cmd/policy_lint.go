package cmd

import (
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/spf13/cobra"

	"github.com/weirnet/weir/pkg/policy/lint"
	"github.com/weirnet/weir/pkg/spell"
	"github.com/weirnet/weir/pkg/version"
)

func (a *app) policyLint() *cobra.Command {
	var format string
	c := &cobra.Command{Use: "lint PATH...", Short: "find traps and dead rules in policies, without an agent",
		Long: "Finds what is valid and still unlikely to be meant: traps of the dialects, rules that match nothing, rules that others\n" +
			"decide instead. Pods, namespaces and nodes that lie beside the policies are looked at too.\n\n" + policyPathHelp + "\n\n" +
			"Each finding has a code, which docs/lint.md explains. The annotation " + lint.IgnoreAnnotation + " of an object lists\n" +
			"codes not to report of it. Exit code 1 where something is found.",
		Example: "  weir policy lint examples/shop\n  weir policy lint --format sarif policies > lint.sarif",
		Args:    atLeastArgs(1)}
	c.Flags().StringVar(&format, "format", "", "text, json or sarif (default text, json with -o json)")
	c.RunE = func(_ *cobra.Command, args []string) error { return a.runLint(args, format) }
	return c
}

// lintReport is the answer as JSON.
type lintReport struct {
	Findings []lintFinding `json:"findings"`
	Policies int           `json:"policies"`
	Pods     int           `json:"pods"`
	LeftOut  []string      `json:"leftOut"` // checks that were not made, in words
}

type lintFinding struct {
	Code   string `json:"code"`
	Name   string `json:"name"`
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Object string `json:"object,omitempty"`
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

func (a *app) runLint(paths []string, format string) error {
	if format == "" {
		if format = "text"; a.format == "json" {
			format = "json"
		}
	}
	if format != "text" && format != "json" && format != "sarif" {
		return usageError{fmt.Sprintf("--format %q is not known; give text, json or sarif", format)}
	}
	sets, err := fileSets(paths)
	if err != nil {
		return err
	}
	var found []lint.Finding
	report := lintReport{Findings: []lintFinding{}, LeftOut: []string{}}
	for _, s := range sets {
		fs, leftOut, policies, pods, err := lintSet(s)
		if err != nil {
			return err
		}
		for _, text := range leftOut {
			report.LeftOut = append(report.LeftOut, s.path+": "+text)
			fmt.Fprintf(a.errOut, "%s: %s\n", s.path, text)
		}
		found = append(found, fs...)
		report.Policies += policies
		report.Pods += pods
	}
	for _, f := range found {
		one := lintFinding{Code: f.Code.ID, Name: f.Code.Name, File: f.File, Line: f.Line, Field: f.Field, Reason: f.Reason, Fix: f.Fix}
		if f.Resource.Name != "" {
			one.Object = f.Resource.String()
		}
		report.Findings = append(report.Findings, one)
	}
	switch format {
	case "json":
		err = a.printJSON(report)
	case "sarif":
		err = sarifReport(found).PrettyWrite(a.out)
	default:
		for _, f := range found {
			fmt.Fprintln(a.out, f)
		}
		_, err = fmt.Fprintln(a.out, counts(report.Policies, report.Pods, len(found), "finding"))
	}
	if err == nil && len(found) > 0 {
		return errNo
	}
	return err
}

// counts is the last line of what was read and what is wrong with it.
func counts(policies, pods, wrong int, what string) string {
	return spell.Count(policies, "policy") + ", " + spell.Count(pods, "pod") + ", " + spell.Count(wrong, what)
}

// sarifReport is the findings in the static analysis results interchange format,
// version 2.1.0.
func sarifReport(found []lint.Finding) *sarif.Report {
	run := sarif.NewRunWithInformationURI("weir policy lint", "https://github.com/weirnet/weir")
	run.Tool.Driver.WithVersion(version.String())
	for _, c := range lint.Codes() {
		run.AddRule(c.ID).WithName(c.Name).WithDescription(c.Short).WithHelpURI("https://github.com/weirnet/weir/blob/main/docs/lint.md#codes")
	}
	for _, f := range found {
		level := "warning"
		if f.Code == lint.Refused || f.Code == lint.ExceptOutside {
			level = "error"
		}
		place := sarif.NewPhysicalLocation().WithArtifactLocation(sarif.NewSimpleArtifactLocation((&url.URL{Path: filepath.ToSlash(f.File)}).String()))
		if f.Line > 0 {
			place.WithRegion(sarif.NewRegion().WithStartLine(f.Line))
		}
		run.CreateResultForRule(f.Code.ID).WithLevel(level).
			WithMessage(sarif.NewTextMessage(f.Reason + "; " + f.Fix)).
			AddLocation(sarif.NewLocationWithPhysicalLocation(place))
	}
	return sarif.NewReport().AddRun(run)
}
