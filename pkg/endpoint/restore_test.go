package endpoint

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

func fullRow() Row {
	l := testLink(7)
	l.IPv6, l.Pool, l.NetNS = netip.MustParseAddr("fd00::7"), "default", "/run/netns/x"
	return Row{
		ID: 7, State: regeneration.StateReady, Created: time.Unix(1700000000, 0).UTC(), Link: l,
		Pod: Pod{"shop", "api", "uid-1"}, RequestLabels: map[string]string{"a": "b"},
		Labels: app("a;=b"), InfoLabels: app("info"), Identity: 1001, Settings: Settings{Audit: true, Enforcement: policytypes.EnforcementOf(policytypes.ModeNever)},
		NamedPorts: policytypes.NamedPorts{{Name: "http", Proto: types.ProtoTCP}: 8080, {Name: "dns", Proto: types.ProtoUDP}: 53},
	}
}

func TestARecordGivesTheRowBack(t *testing.T) {
	dir := t.TempDir()
	row := fullRow()
	require.NoError(t, writeRecord(dir, recordOf(&row, nil)))
	recs, bad, err := ReadAll(dir, "")
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Len(t, recs, 1)
	got := recs[0].row()
	row.State = ""
	require.Equal(t, row, got)
	require.False(t, recs[0].Deleting)
}

func TestUnknownFieldsAreKept(t *testing.T) {
	dir := t.TempDir()
	row := fullRow()
	require.NoError(t, writeRecord(dir, recordOf(&row, nil)))
	path := filepath.Join(recordDir(dir, 7), recordName)
	edit(t, path, func(m map[string]any) { m["from-the-future"] = map[string]any{"x": 1.0} })

	s := newScene(t, nil)
	defer s.stop()
	s.cfg.StateDir = dir
	recs, _, err := ReadAll(dir, "")
	require.NoError(t, err)
	e := Restore(s.cfg, recs[0])
	require.NoError(t, e.Update(func(t *Turn) { t.Row.InfoLabels = app("changed") }))
	require.NoError(t, e.Update(func(*Turn) {})) // the record is written between two turns
	e.Close()
	edit(t, path, func(m map[string]any) {
		require.Equal(t, map[string]any{"x": 1.0}, m["from-the-future"])
		require.Equal(t, []any{"k8s:app=changed"}, m["information-labels"])
	})
}

func edit(t *testing.T, path string, f func(map[string]any)) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	m := map[string]any{}
	require.NoError(t, json.Unmarshal(b, &m))
	f(m)
	b, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o640))
}

func TestRecordsThatCannotBeUsedAreMovedAside(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"cut off", `{"version":1,"id":7`, "unexpected end"},
		{"empty", ``, "unexpected end"},
		{"no version", `{"id":7}`, "no version"},
		{"nothing", `null`, "no version"},
		{"an empty object", `{}`, "no version"},
		{"in the wrong directory", `{"version":1,"id":8}`, "endpoint 8"},
		{"unknown mode", `{"version":1,"id":7,"enforcement":"sometimes","mac":"","node-mac":"","ipv4":"","ipv6":""}`, `enforcement "sometimes" of an endpoint is not known`},
		{"broken address", `{"version":1,"id":7,"ipv4":"10.0.0"}`, "10.0.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			row := fullRow()
			row.ID = 9
			require.NoError(t, writeRecord(dir, recordOf(&row, nil)))
			path := filepath.Join(recordDir(dir, 7), recordName)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
			require.NoError(t, os.WriteFile(path, []byte(c.body), 0o640))

			recs, bad, err := ReadAll(dir, "")
			require.NoError(t, err)
			require.Len(t, recs, 1, "the others are read")
			require.Len(t, bad, 1)
			require.ErrorContains(t, bad[0].Err, c.want)
			kept, err := os.ReadFile(bad[0].Path) // beside its place
			require.NoError(t, err)
			require.Equal(t, c.body, string(kept), "nothing is lost")

			_, bad, err = ReadAll(dir, "")
			require.NoError(t, err)
			require.Empty(t, bad, "and it is reported once")
		})
	}
}

// What kill -9 leaves at each point of a write.
func TestInterruptedWrites(t *testing.T) {
	dir := t.TempDir()
	row := fullRow()
	require.NoError(t, writeRecord(dir, recordOf(&row, nil)))
	require.NoError(t, os.WriteFile(filepath.Join(recordDir(dir, 7), recordTemp), []byte(`{"vers`), 0o640))
	require.NoError(t, os.MkdirAll(recordDir(dir, 8), 0o750)) // before the first temporary file
	require.NoError(t, os.MkdirAll(recordDir(dir, 9), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(recordDir(dir, 9), recordTemp), nil, 0o640))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "not-a-number"), 0o750))

	recs, bad, err := ReadAll(dir, "")
	require.NoError(t, err)
	require.Empty(t, bad)
	require.Len(t, recs, 1)
	require.EqualValues(t, 7, recs[0].ID)
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	require.Len(t, left, 1, "only the record is left: %v", left)
	require.NoDirExists(t, recordDir(dir, 8))
}

func TestADeletionThatBeganIsInTheRecord(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	e := s.endpoint(3)
	e.BeginDelete("test")
	recs, _, err := ReadAll(s.cfg.StateDir, "")
	require.NoError(t, err)
	require.True(t, recs[0].Deleting)
	_, err = e.LockAlive()
	var gone *NotAliveError
	require.ErrorAs(t, err, &gone)
	require.Equal(t, regeneration.StateDisconnecting, gone.State)
	require.NoError(t, e.RemoveRecord())
	require.NoError(t, e.RemoveRecord())
	e.FinishDelete()
	require.NoDirExists(t, recordDir(s.cfg.StateDir, 3))
}

func TestAFailedWriteIsReportedAndRetried(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	e := s.endpoint(3)
	defer e.Close()
	// A directory in the place of the temporary file makes every write fail.
	block := filepath.Join(recordDir(s.cfg.StateDir, 3), recordTemp)
	require.NoError(t, os.MkdirAll(filepath.Join(block, "full"), 0o750)) // not empty, so that it stays
	require.NoError(t, e.Update(func(t *Turn) { t.Row.InfoLabels = app("x") }))
	require.NoError(t, e.Update(func(*Turn) {}))
	log := e.StatusLog()
	require.Contains(t, log[len(log)-1].Message, "record not written")
	// Out of the way in one step: a retry in between would put its file there.
	require.NoError(t, os.Rename(block, filepath.Join(t.TempDir(), "block")))
	require.NoError(t, e.Update(func(*Turn) {})) // a turn retries too
	require.NoError(t, e.Update(func(*Turn) {}))
	recs, _, err := ReadAll(s.cfg.StateDir, "")
	require.NoError(t, err)
	require.Equal(t, app("x"), recs[0].infoLabels)
}

func TestCreationFailsWithoutARecord(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	s.cfg.StateDir = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(s.cfg.StateDir, nil, 0o640))
	_, err := New(s.cfg, fullRow())
	require.ErrorContains(t, err, "check the state directory")
}
