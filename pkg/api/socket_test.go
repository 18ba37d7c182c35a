package api

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func mode(t *testing.T, path string) fs.FileMode {
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

func TestAnUnknownGroupIsRefusedByName(t *testing.T) {
	_, err := listen(filepath.Join(t.TempDir(), "run", "s"), "no-such-group-weir")
	require.ErrorContains(t, err, "no-such-group-weir")
}

func TestALiveSocketIsRefusedAndAStaleOneReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "weir.sock")
	live, err := listen(path, "")
	require.NoError(t, err)
	_, err = listen(path, "")
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, path)
	live.Listener.Close()
	next, err := listen(path, "")
	require.NoError(t, err)
	// The dead agent's late Close must not take the new socket away.
	live.Close()
	c, err := net.DialTimeout("unix", path, time.Second)
	require.NoError(t, err)
	c.Close()
	require.NoError(t, next.Close())
	require.NoFileExists(t, path)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestPlacesWhereASocketCannotBe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		file:                                     "is not a socket",
		"/tmp/weir.sock":                         "other programs share",
		"/run/weir.sock":                         "other programs share",
		"/" + strings.Repeat("x", maxSocketPath): "shorter run directory",
		filepath.Join(file, "below", "weir.sock"): "run directory",
	} {
		_, err := listen(path, "")
		require.ErrorContains(t, err, want, path)
	}
	require.Equal(t, fs.FileMode(0o755), mode(t, "/run"), "a shared directory's mode was changed")
}
