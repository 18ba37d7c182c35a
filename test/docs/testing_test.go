package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/cli/cmd"
)

// tour reads the files, by path, and the commands of a page.
func tour(text string) (files map[string]string, commands [][]string) {
	files = map[string]string{}
	kind := ""
	for _, line := range strings.Split(text, "\n") {
		if fence, ok := strings.CutPrefix(line, "```"); ok {
			kind = fence
			continue
		}
		if path, ok := strings.CutPrefix(kind, "yaml "); ok {
			files[path] += line + "\n"
		}
		if kind == "sh" {
			line, _, _ = strings.Cut(line, "#")
			for _, c := range strings.Split(line, "&&") {
				commands = append(commands, strings.Fields(c))
			}
		}
	}
	return files, commands
}

func TestTheTourOfTheTestingPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/testing.md")
	require.NoError(t, err)
	files, commands := tour(string(text))
	require.Len(t, files, 3)
	require.Greater(t, len(commands), 6)
	t.Chdir(t.TempDir())
	for path, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for _, c := range commands {
		require.Equal(t, "weir", c[0])
		var out, errOut bytes.Buffer
		require.Zero(t, cmd.Execute(c[1:], &out, &errOut), "%v: %s%s", c, &out, &errOut)
	}
	require.FileExists(t, "report.xml")

	// What the page forbids is noticed: the test fails without the hole of the block.
	var out, errOut bytes.Buffer
	policies := strings.Replace(files["bank/policies.yaml"], ", except: [198.51.100.128/25]", "", 1)
	require.NoError(t, os.WriteFile("bank/policies.yaml", []byte(policies), 0o600))
	require.Equal(t, 1, cmd.Execute([]string{"policy", "test", "bank"}, &out, &errOut))
	require.Contains(t, out.String(), "hole -> web:https is deny")
}
