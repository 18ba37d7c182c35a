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

	"github.com/weirnet/weir/pkg/atomicfile"
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

func TestN25WhatStandsInTheSocketsPlaceIsSetAside(t *testing.T) {
	for _, make := range []func(path string) error{
		func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) },
		func(p string) error { return os.MkdirAll(filepath.Join(p, "x"), 0o700) },
	} {
		path := filepath.Join(t.TempDir(), "weir.sock")
		require.NoError(t, make(path))
		s, err := listen(path, "")
		require.NoError(t, err)
		require.NoError(t, s.Close())
		aside, err := atomicfile.ListAside(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, aside, 1)
	}
}

func TestPlacesWhereASocketCannotBe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		"/tmp/weir.sock":                          "other programs share",
		"/run/weir.sock":                          "other programs share",
		"/" + strings.Repeat("x", maxSocketPath):  "shorter run directory",
		filepath.Join(file, "below", "weir.sock"): "run directory",
	} {
		_, err := listen(path, "")
		require.ErrorContains(t, err, want, path)
	}
	require.Equal(t, fs.FileMode(0o755), mode(t, "/run"), "a shared directory's mode was changed")
}
