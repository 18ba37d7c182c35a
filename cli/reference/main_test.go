package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/cli/cmd"
)

func TestThePageIsUpToDate(t *testing.T) {
	t.Setenv("WEIR_SOCKET_PATH", "/somewhere/else")
	want, err := Page()
	require.NoError(t, err)
	have, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err, "run go generate ./cli")
	if string(want) != string(have) {
		t.Error("docs/cli.md is stale; run go generate ./cli")
	}
}

func TestThePageHasEveryCommandAndNothingOfTheMachine(t *testing.T) {
	page, err := Page()
	require.NoError(t, err)
	text := string(page)
	for _, c := range cmd.Root().Commands() {
		if c.IsAvailableCommand() {
			require.True(t, strings.Contains(text, "## weir "+c.Name()+"\n"), "%s is missing", c.Name())
		}
	}
	require.True(t, strings.Contains(text, "## weir policy lint\n"), "commands below commands are missing")
	home, err := filepath.Abs("../..")
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, bad := range []string{home, host, "/somewhere/else", "Auto generated"} {
		require.False(t, strings.Contains(text, bad), "the page has %q", bad)
	}
	date := regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}-[A-Z][a-z]{2}-20[0-9]{2}`)
	require.Empty(t, date.FindString(text))
	// Every link leads to a heading.
	anchors := map[string]bool{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			anchors["#"+strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	links := regexp.MustCompile(`\]\((#[^)]*)\)`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, links)
	for _, l := range links {
		require.True(t, anchors[l[1]], "%s leads nowhere", l[1])
	}
}

func TestRunWritesTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "cli.md")
	require.Error(t, run(nil))
	require.NoError(t, run([]string{name}))
	have, err := os.ReadFile(name)
	require.NoError(t, err)
	want, err := Page()
	require.NoError(t, err)
	require.Equal(t, string(want), string(have))
}
