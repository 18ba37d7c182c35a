package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// both runs a test with either way to write.
func both(t *testing.T, test func(t *testing.T, write func(string, []byte, fs.FileMode) error)) {
	t.Run("Write", func(t *testing.T) { test(t, Write) })
	t.Run("WriteSync", func(t *testing.T) { test(t, WriteSync) })
}

func TestAReaderOfTheOldFileKeepsIt(t *testing.T) {
	both(t, func(t *testing.T, write func(string, []byte, fs.FileMode) error) {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, write(path, []byte("old"), 0o600))
		reader, err := os.Open(path)
		require.NoError(t, err)
		defer reader.Close()
		require.NoError(t, write(path, []byte("newer"), 0o600))
		old := make([]byte, 10)
		n, _ := reader.Read(old)
		require.Equal(t, "old", string(old[:n]))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "newer", string(text))
		require.NoFileExists(t, path+TempSuffix)
	})
}

func TestWhatAKilledWriterLeftIsReplaced(t *testing.T) {
	both(t, func(t *testing.T, write func(string, []byte, fs.FileMode) error) {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path+TempSuffix, []byte("half of a longer file"), 0o666))
		require.NoError(t, write(path, []byte("new"), 0o600))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "new", string(text))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode(), "not the permissions of the leftover")
	})
}

func TestAfterAnErrorTheFileIsAsItWas(t *testing.T) {
	both(t, func(t *testing.T, write func(string, []byte, fs.FileMode) error) {
		dir := t.TempDir()
		full := filepath.Join(dir, "folder") // a folder that is not empty cannot be replaced
		require.NoError(t, os.MkdirAll(filepath.Join(full, "x"), 0o700))
		require.Error(t, write(full, []byte("new"), 0o600))
		require.NoFileExists(t, full+TempSuffix)
		require.DirExists(t, filepath.Join(full, "x"))

		blocked := filepath.Join(dir, "f")
		require.NoError(t, write(blocked, []byte("old"), 0o600))
		require.NoError(t, os.MkdirAll(filepath.Join(blocked+TempSuffix, "x"), 0o700))
		require.Error(t, write(blocked, []byte("new"), 0o600))
		text, err := os.ReadFile(blocked)
		require.NoError(t, err)
		require.Equal(t, "old", string(text))

		require.Error(t, write(filepath.Join(dir, "none", "f"), nil, 0o600))
	})
}
