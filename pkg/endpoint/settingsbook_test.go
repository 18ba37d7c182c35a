package endpoint

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/atomicfile"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

func TestN25SettingsOfAPodOutliveARebootAndBelongToThatPodAlone(t *testing.T) {
	dir := t.TempDir()
	always := Settings{Enforcement: policytypes.EnforcementOf(policytypes.ModeAlways)}
	pod := Pod{"shop", "api", "u1"}
	reopened := func() *SettingsBook {
		b, damage, err := OpenSettings(dir)
		require.NoError(t, err)
		require.Nil(t, damage)
		return b
	}
	require.NoError(t, reopened().Keep(pod, always))
	got, ok := reopened().Of(pod)
	require.True(t, ok)
	require.Equal(t, always, got)
	for _, other := range []Pod{{"shop", "api", "u2"}, {"shop", "api", ""}, {"shop", "web", "u1"}, {}} {
		_, ok := reopened().Of(other)
		require.False(t, ok, "%+v", other)
	}
	require.NoError(t, reopened().Keep(pod, Settings{}))
	_, ok = reopened().Of(pod)
	require.False(t, ok, "what was taken back is not kept")
	require.NoError(t, reopened().Keep(Pod{}, always), "a container without a name comes back as another one")

	b := reopened()
	for i := range maxKept + 3 {
		b.pods[fmt.Sprintf("x/%d", i)] = keptSettings{Namespace: "x", Name: fmt.Sprint(i), Audit: true}
	}
	require.NoError(t, b.Keep(pod, always))
	require.Len(t, reopened().pods, maxKept)
	_, ok = reopened().Of(pod)
	require.True(t, ok, "the newest stay")

	require.NoError(t, os.WriteFile(b.path, []byte("{"), 0o600))
	b, damage, err := OpenSettings(dir)
	require.NoError(t, err)
	require.NotNil(t, damage)
	require.NoError(t, b.Keep(pod, always))
	aside, err := atomicfile.ListAside(dir)
	require.NoError(t, err)
	require.Len(t, aside, 1)
}

// A pod that comes again has its settings when its endpoint is made, and one whose
// record is lost when it is restored; a record that is whole makes a lost book again.
func TestN25AnEndpointHasTheSettingsThatWereKeptForItsPod(t *testing.T) {
	s := newScene(t, nil)
	defer s.stop()
	always := Settings{Enforcement: policytypes.EnforcementOf(policytypes.ModeAlways)}
	book, _, err := OpenSettings(t.TempDir())
	require.NoError(t, err)
	s.cfg.Settings = book
	row := fullRow()
	row.Settings = Settings{}
	require.NoError(t, book.Keep(row.Pod, always))
	e, err := New(s.cfg, row)
	require.NoError(t, err)
	e.Close()
	require.Equal(t, always, e.Row().Settings)

	again := recordOf(e.Row(), nil)
	again.Enforcement = policytypes.EnforcementNode
	e = Restore(s.cfg, MadeRecord(again))
	e.Close()
	require.Equal(t, always, e.Row().Settings)

	s.cfg.Settings, _, err = OpenSettings(t.TempDir())
	require.NoError(t, err)
	recs, _, err := ReadAll(s.cfg.StateDir, "")
	require.NoError(t, err)
	require.Len(t, recs, 1)
	Restore(s.cfg, recs[0]).Close()
	got, ok := s.cfg.Settings.Of(row.Pod)
	require.True(t, ok)
	require.Equal(t, always, got)
}
