package lastgood

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func open(t *testing.T, dir, state string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, StateDir: state, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return s
}

// put keeps a text of a source and one of the API and commits.
func put(t *testing.T, s *Store, text string) (source, api Version) {
	t.Helper()
	source, err := s.Put("/etc/objects/a.yaml", []byte(text))
	require.NoError(t, err)
	api, err = s.PutAPI("NetworkPolicy/x/a", []byte(text))
	require.NoError(t, err)
	require.NoError(t, s.Commit(&Index{
		Sources: map[string]*Source{"/etc/objects": {Files: map[string]*File{"/etc/objects/a.yaml": {Versions: []Version{source}}}}},
		API:     map[string]*File{"NetworkPolicy/x/a": {Versions: []Version{api}}},
	}))
	return source, api
}

func TestN01AnyWholeCopyOfTheIndexIsEnough(t *testing.T) {
	damages := map[string]func(string) error{
		"removed": os.Remove, "emptied": func(p string) error { return os.Truncate(p, 0) }, "cut": func(p string) error { return os.Truncate(p, 50) },
		"null":   func(p string) error { return os.WriteFile(p, []byte("null"), 0o600) },
		"{}":     func(p string) error { return os.WriteFile(p, []byte("{}"), 0o600) },
		"folder": func(p string) error { os.Remove(p); return os.MkdirAll(filepath.Join(p, "x"), 0o700) },
		"other":  func(p string) error { return os.WriteFile(p, []byte(`{"version":1,"sha256":"00","index":{}}`), 0o600) },
	}
	for name, damage := range damages {
		dir, state := t.TempDir(), t.TempDir()
		s := open(t, dir, state)
		require.True(t, s.New())
		source, api := put(t, s, "one")
		for _, whole := range s.indexes {
			for _, path := range s.indexes {
				if path != whole {
					require.NoError(t, damage(path), name)
				}
			}
			s = open(t, dir, state)
			require.False(t, s.New() || s.Lost(), name)
			require.Contains(t, s.Index().API, "NetworkPolicy/x/a")
			text, err := s.Text(source)
			require.NoError(t, err)
			require.Equal(t, "one", string(text))
			text, err = s.APIText(api)
			require.NoError(t, err)
			require.Equal(t, "one", string(text))
			require.NoError(t, s.Commit(s.Index())) // makes the others again
		}
		for _, path := range s.indexes {
			require.NoError(t, damage(path), name)
		}
		s = open(t, dir, state)
		require.Equal(t, name != "removed", s.Lost(), name)
		require.NotEmpty(t, s.Found(), "the texts are there all the same")
		require.NoError(t, s.Commit(&Index{}))
	}
}

func TestTextsThatNoIndexNamesGo(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, "")
	old, _ := put(t, s, "one")
	put(t, s, "two")
	_, err := s.Text(old)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, s.Commit(&Index{}))
	for _, sub := range []string{"sources", "policies", "policies.copy"} {
		left, err := filepath.Glob(filepath.Join(dir, sub, "*.yaml"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// A version that was written and never named is not the one that counts.
func TestN01APutThatIsNotFinishedIsUndone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, "")
	_, api := put(t, s, "one")
	_, err := s.PutAPI("NetworkPolicy/x/a", []byte("two"))
	require.NoError(t, err)
	s = open(t, dir, "")
	text, err := s.APIText(api)
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	s.Forget()
	first, err := os.ReadFile(s.APIPath("NetworkPolicy/x/a"))
	require.NoError(t, err)
	require.Equal(t, "one", string(first), "the first copy is as it was")
}

func TestALongNameHasItsOwnFile(t *testing.T) {
	long := "NetworkPolicy/x/" + string(make([]byte, 253))
	require.Less(t, len(apiName(long)), 255)
	require.NotEqual(t, apiName(long), apiName(long+"y"))
}

func TestWhatStandsInTheDirectorysPlaceIsSetAside(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sources"), []byte("x"), 0o600))
	put(t, open(t, dir, ""), "one")
	left, err := filepath.Glob(filepath.Join(dir, "sources.bad-*"))
	require.NoError(t, err)
	require.Len(t, left, 1)
}
