package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatCannotBeUsedIsSetAsideAndOnlyThat(t *testing.T) {
	refused := errors.New("refused")
	take := func(b []byte) error {
		if string(b) != "good" {
			return refused
		}
		return nil
	}
	for _, c := range []struct {
		name string
		make func(path string) error
		bad  bool
	}{
		{"nothing", func(string) error { return nil }, false},
		{"a good file", func(p string) error { return os.WriteFile(p, []byte("good"), 0o600) }, false},
		{"an empty file", func(p string) error { return os.WriteFile(p, nil, 0o600) }, true},
		{"a directory", func(p string) error { return os.MkdirAll(filepath.Join(p, "x"), 0o700) }, true},
		{"a link to itself", func(p string) error { return os.Symlink(filepath.Base(p), p) }, true},
		{"a link to nowhere", func(p string) error { return os.Symlink("nowhere", p) }, true},
		{"a pipe", func(p string) error { return syscall.Mkfifo(p, 0o600) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "f")
			require.NoError(t, c.make(path))
			require.NoError(t, os.MkdirAll(filepath.Join(path+TempSuffix, "x"), 0o700))
			damage := Load(path, take)
			require.Equal(t, c.bad, damage != nil)
			if damage != nil {
				require.Equal(t, path, damage.Of)
				require.ErrorContains(t, damage, damage.Path)
				_, err := os.Lstat(damage.Path)
				require.NoError(t, err, "it is kept")
				require.Nil(t, Load(path, take), "it is told once")
			}
			require.NoError(t, Write(path, []byte("good"), 0o600), "nothing is in the way of a new one")
			all, err := ListAside(dir)
			require.NoError(t, err)
			require.NotEmpty(t, all)
		})
	}
}

func TestN11AFileOfAnotherUserIsNoStateOfOurs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, []byte("planted"), 0o666))
	if os.Chown(path, 12345, -1) != nil {
		require.NotZero(t, os.Geteuid(), "root may give files away")
		return
	}
	damage := Load(path, func([]byte) error { return nil })
	require.ErrorContains(t, damage, "user 12345")
	require.NoFileExists(t, path)
}

func TestN11ADirectoryIsTightenedOrRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, Private(dir, 0o750))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750), info.Mode().Perm())
	if os.Chown(dir, 12345, -1) == nil {
		err := Private(dir, 0o750)
		require.ErrorContains(t, err, "user 12345")
		require.ErrorContains(t, err, "chown")
	}
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, Private(file, 0o750), "what is no directory is set aside")
	require.DirExists(t, file)
}
