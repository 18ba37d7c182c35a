package cmd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/cli/trial"
	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/policy/testfile"
)

// testRun is one run of "weir policy test".
type testRun struct {
	offline
	junit, tap string
	kernel     bool
	bpffs      string

	judge   *trial.Judge // with --kernel
	report  testfile.Report
	results testResults
	cases   bool // a file of policy cases was among the paths
}

// testResults is the answer as JSON.
type testResults struct {
	Passed  int          `json:"passed"`
	Failed  int          `json:"failed"`
	Results []testResult `json:"results"`
}

// testResult is one expectation or policy case.
type testResult struct {
	Test         string            `json:"test"`
	Name         string            `json:"name"`
	Place        string            `json:"place"`
	Passed       bool              `json:"passed"`
	Problem      string            `json:"problem,omitempty"`
	Explanations []gen.Explanation `json:"explanations,omitempty"` // of an expectation that failed
	Cells        []string          `json:"cells,omitempty"`        // of a policy case that failed
}

func (a *app) policyTest() *cobra.Command {
	r := &testRun{}
	c := r.flags(&cobra.Command{Use: "test PATH...", Short: "run the tests beside policies, without an agent", Args: atLeastArgs(1),
		Long: "PATH is a folder with policies and tests (objects of kind PolicyTest, by habit in files NAME_test.yaml), or one file\n" +
			"of tests in such a folder, or a file of policy cases (JSON, format netpol-cases/1, also compressed with gzip).\n" +
			"A test that is not met is printed with its explanation. Exit code 1 where there is one, and where there is no test.\n\n" +
			"With --kernel each expectation that is met is asked again of the real programs on real maps, packet by packet; verdict\n" +
			"and rule must be the same. Policy cases are then asked of the programs alone.\n\n" +
			"apiVersion: weir.net/v1\nkind: PolicyTest\nmetadata: {name: shop}\n" +
			"namespaces: [{name: lab, labels: {team: lab}}]            # beside those of the folder\n" +
			"pods: [{namespace: lab, name: probe, labels: {app: probe}, ports: [{name: http, port: 80}]}]\n" +
			"outside: [{name: customer, addresses: [203.0.113.10]}]\n" +
			"expect:\n" +
			"  - {from: shop/frontend, to: shop/api, port: http, verdict: allow}\n" +
			"  - {from: [lab/probe, customer], to: shop/db, port: [5432, 7946/UDP], verdict: deny, rule: NetworkPolicy shop/db}\n\n" +
			"rule is optional, what has to decide at one of the two ends: KIND NAMESPACE/NAME, with SECTION[INDEX] behind for one\n" +
			"rule of it, \"default deny\" or \"not isolated\". family (IPv4 or IPv6) is optional too. A test that is written wrong\n" +
			"is a failure here and a problem of \"weir policy validate\"; the agent passes tests over. docs/testing.md is a tour.\n\n" + offlineHelp,
		Example: "  weir policy test examples/shop\n  weir policy test examples/shop --junit report.xml",
		RunE:    func(c *cobra.Command, args []string) error { return a.runTests(c.Context(), r, args) }})
	c.Flags().BoolVar(&r.kernel, "kernel", false, "ask the programs in the kernel too (root); nothing is attached or sent")
	c.Flags().StringVar(&r.bpffs, "bpffs", "/sys/fs/bpf", "with --kernel: a mounted bpffs")
	c.Flags().StringVar(&r.junit, "junit", "", "also write the results as JUnit XML to this file, - for the standard output alone")
	c.Flags().StringVar(&r.tap, "tap", "", "also write the results as TAP to this file, - for the standard output alone")
	return c
}

func (a *app) runTests(ctx context.Context, r *testRun, paths []string) (err error) {
	if r.junit == "-" && r.tap == "-" {
		return usageError{"--junit - and --tap - exclude each other; give one of them a file"}
	}
	r.report.Started = time.Now()
	r.results.Results = []testResult{}
	if r.kernel {
		done, failed := r.openKernel()
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, done()) }()
	}
	if r.report.Host, err = os.Hostname(); err != nil {
		r.report.Host = "localhost"
	}
	for _, path := range paths {
		if err := r.path(ctx, path); err != nil {
			r.failedSuite(filepath.Base(path), path, err) // a report of an earlier run must not stay
			return errors.Join(err, a.writeReport(r.junit, r.report.JUnit), a.writeReport(r.tap, r.report.TAP))
		}
	}
	r.results.Passed, r.results.Failed = r.report.Count()
	err = errors.Join(a.writeReport(r.junit, r.report.JUnit), a.writeReport(r.tap, r.report.TAP))
	if err == nil && r.junit != "-" && r.tap != "-" {
		err = a.show(r.results, func() error { return a.writeResults(r) })
	}
	if err == nil && r.results.Failed > 0 {
		return errNo
	}
	return err
}

// path runs what one path holds.
func (r *testRun) path(ctx context.Context, path string) error {
	if set, err := readCases(path); err != nil || set != nil {
		if err == nil {
			r.cases = true
			r.play(ctx, path, set)
		}
		return err
	}
	f, err := r.read(path)
	if err != nil {
		return err
	}
	if len(f.Tests)+len(f.Broken) == 0 {
		return fmt.Errorf("%s holds no test; write one, see: weir policy test --help", path)
	}
	for _, b := range f.Broken {
		r.failedSuite(filepath.Base(b.Path), b.Path, b.Err)
	}
	for _, t := range f.Tests {
		start := time.Now()
		asked, c, err := t.Run(f.Sketch)
		if err != nil {
			r.failedSuite(t.Name, t.Path, err)
			continue
		}
		if r.judge != nil {
			if err := r.judge.Take(ctx, c); err != nil {
				return fmt.Errorf("%s: filling the kernel's maps: %w", t.Path, err)
			}
		}
		suite := testfile.Suite{Name: t.Name, Path: t.Path}
		for _, one := range asked {
			if r.judge != nil && one.Passed() {
				one.Problem = r.askKernel(c, one.Answers)
			}
			r.add(&suite, one.Case(t.Path), func(res *testResult) { res.Explanations = explanations(c, one.Answers) })
		}
		suite.Took = time.Since(start)
		r.report.Suites = append(r.report.Suites, suite)
	}
	return nil
}

// add notes a case in the suite and in the results; more fills in a failure.
func (r *testRun) add(s *testfile.Suite, c testfile.Case, more func(*testResult)) {
	s.Cases = append(s.Cases, c)
	result := testResult{Test: s.Name, Name: c.Name, Place: c.Place, Passed: c.Problem == "", Problem: c.Problem}
	if !result.Passed {
		more(&result)
	}
	r.results.Results = append(r.results.Results, result)
}

func (r *testRun) failedSuite(name, path string, err error) {
	s := testfile.Broken(name, path, err)
	r.report.Suites = append(r.report.Suites, s)
	r.results.Results = append(r.results.Results, testResult{Test: name, Name: s.Cases[0].Name, Place: path, Problem: err.Error()})
}

// readCases reads a file of policy cases; nil for any other path.
func readCases(path string) (*casefile.Set, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil //nolint:nilerr // a folder, or reported where it is read as one
	}
	if z, err := gzip.NewReader(bytes.NewReader(text)); err == nil {
		if text, err = io.ReadAll(z); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	var head struct {
		Format *string `json:"format"`
	}
	if json.Unmarshal(text, &head) != nil || head.Format == nil {
		return nil, nil
	}
	set, err := casefile.Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return set, nil
}

// play runs every case of a file; each is one case of the suite.
func (r *testRun) play(ctx context.Context, path string, set *casefile.Set) {
	start := time.Now()
	suite := testfile.Suite{Name: filepath.Base(path), Path: path}
	for _, c := range set.Cases {
		_, wrong, err := set.Play(c, r.cluster, r.by(ctx))
		one := testfile.Case{Name: c.ID, Place: c.Title, Broken: err != nil}
		var cells []string
		for _, w := range wrong {
			cells = append(cells, w.String())
		}
		if err != nil {
			cells = append(cells, err.Error())
		}
		if len(cells) > 0 {
			one.Problem = fmt.Sprintf("%d cells differ", len(wrong))
			if err != nil {
				one.Problem, _, _ = strings.Cut(err.Error(), "\n")
			}
			one.Detail = strings.Join(cells, "\n")
		}
		r.add(&suite, one, func(res *testResult) { res.Cells = cells })
	}
	suite.Took = time.Since(start)
	r.report.Suites = append(r.report.Suites, suite)
}

// writeReport writes one form of the report to a file, if there is a name.
func (a *app) writeReport(name string, write func(io.Writer) error) error {
	switch name {
	case "":
		return nil
	case "-":
		return write(a.out)
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	// Written in place: the name may be a link, a pipe or a device.
	if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// writeResults prints a line per expectation, then every failure in full. Of
// policy cases only those that failed have a line.
func (a *app) writeResults(r *testRun) error {
	var lines [][]string
	for _, s := range r.report.Suites {
		for _, c := range s.Cases {
			switch {
			case c.Problem != "":
				lines = append(lines, []string{"FAILED", s.Name, c.Name, c.Place})
			case !r.cases:
				lines = append(lines, []string{"passed", s.Name, c.Name, c.Place})
			}
		}
	}
	if len(lines) > 0 {
		if err := a.rows("RESULT TEST EXPECTATION PLACE", lines); err != nil {
			return err
		}
	}
	for _, s := range r.report.Suites {
		for _, c := range s.Cases {
			if c.Problem != "" {
				fmt.Fprintf(a.out, "\n%s: %s\n  %s\n", c.Place, c.Name, strings.ReplaceAll(c.Detail, "\n", "\n  "))
			}
		}
	}
	what := "expectations"
	if r.cases {
		what = "cases"
	}
	_, err := fmt.Fprintf(a.out, "%d %s passed, %d failed\n", r.results.Passed, what, r.results.Failed)
	return err
}
