package cmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/policy/lint"
)

// runWeir runs a command line and returns its exit code and output.
func runWeir(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Execute(args, &o, &e)
	return code, o.String(), e.String()
}

var wanted = regexp.MustCompile(`# want (WL[0-9]+)`)

// wantedIn reads the "# want CODE" marks of a folder, as "file:line: CODE".
func wantedIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	require.NoError(t, err)
	var out []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			if m := wanted.FindStringSubmatch(line); m != nil {
				out = append(out, fmt.Sprintf("%s:%d: %s", name, i+1, m[1]))
			}
		}
	}
	return out
}

func lintJSON(t *testing.T, wantCode int, path string) []lintFinding {
	t.Helper()
	code, out, errOut := runWeir(t, "policy", "lint", "--format", "json", path)
	require.Equal(t, wantCode, code, "%s%s", out, errOut)
	var r lintReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	return r.Findings
}

func TestLintFindsEveryTrapOnceAndNothingElse(t *testing.T) {
	want := wantedIn(t, "testdata/traps")
	var got, codes []string
	for _, f := range lintJSON(t, exitNo, "testdata/traps") {
		got = append(got, fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Code))
		codes = append(codes, f.Code)
		require.NotEmpty(t, f.Reason)
		require.NotEmpty(t, f.Fix)
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got)
	var all []string
	for _, c := range lint.Codes() {
		all = append(all, c.ID)
	}
	slices.Sort(codes)
	require.Equal(t, all, codes, "the folder has one instance of every code")
}

func TestLintFindsNothingInTheExamples(t *testing.T) {
	require.Empty(t, lintJSON(t, exitOK, "../../examples"))
	_, out, _ := runWeir(t, "policy", "lint", "../../examples")
	require.Contains(t, out, "0 findings")
	require.NotContains(t, out, "0 policies", "the folders below were not read")
}

func TestLintPrintsText(t *testing.T) {
	code, out, _ := runWeir(t, "policy", "lint", "testdata/traps")
	require.Equal(t, exitNo, code)
	for _, want := range wantedIn(t, "testdata/traps") {
		require.Contains(t, out, want+" ")
	}
}

func TestLintWritesValidSARIF(t *testing.T) {
	code, out, _ := runWeir(t, "policy", "lint", "--format", "sarif", "testdata/traps")
	require.Equal(t, exitNo, code)
	report, err := sarif.FromBytes([]byte(out))
	require.NoError(t, err)
	require.NoError(t, report.Validate())
	require.Equal(t, "2.1.0", report.Version)
	require.Len(t, report.Runs, 1)
	var got []string
	for _, r := range report.Runs[0].Results {
		at := r.Locations[0].PhysicalLocation
		got = append(got, fmt.Sprintf("%s:%d: %s", *at.ArtifactLocation.URI, *at.Region.StartLine, *r.RuleID))
		require.Equal(t, *r.RuleID, *report.Runs[0].Tool.Driver.Rules[r.RuleIndex].ID)
	}
	want := wantedIn(t, "testdata/traps")
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, want, got)

	code, out, _ = runWeir(t, "policy", "lint", "--format", "sarif", "../../examples")
	require.Equal(t, exitOK, code)
	report, err = sarif.FromBytes([]byte(out))
	require.NoError(t, err)
	require.NoError(t, report.Validate())
}

func TestAPlaceInSARIFIsAReferenceWithoutBlanks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p.yaml"), []byte("{"), 0o600))
	_, out, _ := runWeir(t, "policy", "lint", "--format", "sarif", dir)
	require.Contains(t, out, `/a%20b/p.yaml"`)
}

func TestLintRefusesWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"policy", "lint"}, {"policy", "lint", "--format", "xml", "testdata/traps"}} {
		code, _, errOut := runWeir(t, args...)
		require.Equal(t, exitFailed, code, errOut)
	}
	for _, args := range [][]string{{"policy", "lint", "testdata/none"}, {"policy", "lint", t.TempDir()}} {
		code, _, errOut := runWeir(t, args...)
		require.Equal(t, exitFailed, code)
		require.NotEmpty(t, errOut)
	}
}
