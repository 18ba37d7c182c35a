package atomicfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsSetAsideIsListedUntilItIsRemoved(t *testing.T) {
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "a", "leases.json"), filepath.Join(dir, "b", "rules.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "x.bad-"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "old.json.damaged"), nil, 0o600))

	one, err := SetAside(file)
	require.NoError(t, err)
	two, err := SetAside(folder)
	require.NoError(t, err)
	require.NoFileExists(t, file)
	got, err := ListAside(dir, filepath.Join(dir, "missing"))
	require.NoError(t, err)
	require.Equal(t, []Aside{one, two, {Path: filepath.Join(dir, "old.json.damaged"), Of: filepath.Join(dir, "old.json")}}, got)
	require.Equal(t, file, one.Of)

	require.NoError(t, os.Remove(one.Path))
	got, err = ListAside(filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestWhatIsMissingCannotBeSetAside(t *testing.T) {
	a, err := SetAside(filepath.Join(t.TempDir(), "x"))
	require.Error(t, err)
	require.Equal(t, a.Of, a.Path)
}
