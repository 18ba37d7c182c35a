package cmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAReportGoesThroughALink(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "report.xml"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink("report.xml", link))
	code, _, errOut := runWeir(t, "policy", "test", shop, "--junit", link)
	require.Equal(t, exitOK, code, errOut)
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink, "/dev/stdout is a link too, and must stay one")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), "</testsuites>")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

func TestAReportThatTheDiskHasNoRoomForIsAnError(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full")
	require.NoError(t, os.Symlink("/dev/full", full))
	code, _, errOut := runWeir(t, "policy", "test", shop, "--tap", full)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errOut, "writing the report")
}
