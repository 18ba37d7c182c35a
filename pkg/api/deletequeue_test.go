package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/atomicfile"
)

func queued(t *testing.T, runDir, container string, at int) string {
	r := v1.QueuedDelete{Version: 1, ContainerID: container, Interface: "eth0", Queued: time.Unix(int64(at), 0)}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	path := filepath.Join(runDir, v1.QueueDir, r.FileName())
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

func TestReplayDeletesInOrderAndRemovesFiles(t *testing.T) {
	run := t.TempDir()
	second, first, failing := queued(t, run, "second", 20), queued(t, run, "first", 10), queued(t, run, "failing", 15)
	dir := filepath.Join(run, v1.QueueDir)
	for name, text := range map[string]string{"broken.json": "{", "empty.json": "", "other.json": `{"version":7,"containerId":"x"}`, "nobody.json": `{"version":1}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "folder.json", "x"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, v1.QueueBadDir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, v1.QueueBadDir, "old.json"), []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, v1.QueueTemp+"123"), []byte("half a req"), 0o600))
	var logs bytes.Buffer
	q := NewDeleteQueue(run, slog.New(slog.NewTextHandler(&logs, nil)))
	var order []string
	opened := 0
	res, err := q.Drain(t.Context(), func(_ context.Context, r v1.QueuedDelete) error {
		require.Zero(t, opened)
		order = append(order, r.ContainerID+" "+r.Interface)
		if r.ContainerID == "failing" {
			return errors.New("map is busy")
		}
		return nil
	}, func() { opened++ })
	require.NoError(t, err)
	require.Equal(t, 1, opened)
	require.Equal(t, ReplayResult{Done: 2, Failed: 1, Bad: 5}, res)
	require.Equal(t, []string{"first eth0", "failing eth0", "second eth0"}, order)
	require.NoFileExists(t, first)
	require.NoFileExists(t, second)
	require.FileExists(t, failing)
	aside, err := atomicfile.ListAside(run)
	require.NoError(t, err)
	require.Len(t, aside, 6, "also a directory, and what a former agent moved away: %v", aside)
	require.NoDirExists(t, filepath.Join(dir, v1.QueueBadDir))
	require.NoFileExists(t, filepath.Join(dir, v1.QueueTemp+"123"))
	for _, word := range []string{"map is busy", "broken.json", "another release"} {
		require.Contains(t, logs.String(), word)
	}
	// The next start finds only what failed.
	res, err = q.Drain(t.Context(), func(context.Context, v1.QueuedDelete) error { return nil }, func() {})
	require.NoError(t, err)
	require.Equal(t, ReplayResult{Done: 1}, res)
	require.NoFileExists(t, failing)
}

// N23: a DEL never waits; what it queues while the queue is carried out is carried
// out too, before the API takes deletions.
func TestN23ADeletionThatIsQueuedWhileTheQueueIsCarriedOutIsNotLost(t *testing.T) {
	run := t.TempDir()
	queued(t, run, "first", 10)
	q := NewDeleteQueue(run, slog.New(slog.DiscardHandler))
	var order []string
	res, err := q.Drain(t.Context(), func(_ context.Context, r v1.QueuedDelete) error {
		if order = append(order, r.ContainerID); len(order) == 1 {
			other := NewDeleteQueue(run, slog.New(slog.DiscardHandler))
			require.NoError(t, other.take(t.Context()), "a plugin can queue meanwhile")
			queued(t, run, "second", 5)
			other.release()
		}
		return nil
	}, func() { order = append(order, "open") })
	require.NoError(t, err)
	require.Equal(t, ReplayResult{Done: 2}, res)
	require.Equal(t, []string{"first", "second", "open"}, order)
}

func TestTwoAgentsCannotHoldTheQueue(t *testing.T) {
	run := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	a, b := NewDeleteQueue(run, log), NewDeleteQueue(run, log)
	require.NoError(t, a.take(t.Context()))
	require.Error(t, a.take(t.Context()))
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.take(short), context.DeadlineExceeded)
	a.release()
	a.release()
	require.NoError(t, b.take(t.Context()))
	b.release()
}

func TestConflistIsWholeStableAndGoesAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	c := Conflist{Dir: dir, Socket: "/run/weir/weir.sock", RunDir: "/run/weir", MTU: 1400}
	write := func(was string) {
		t.Helper()
		got, err := c.Write()
		require.NoError(t, err)
		require.Equal(t, was, got)
	}
	write("removed")
	first, err := os.Stat(c.Path())
	require.NoError(t, err)
	text, err := os.ReadFile(c.Path())
	require.NoError(t, err)
	var have map[string]any
	require.NoError(t, json.Unmarshal(text, &have))
	require.Equal(t, "weir", have["name"])
	plugin := have["plugins"].([]any)[0].(map[string]any)
	require.Equal(t, map[string]any{"type": "weir-cni", "socket": "/run/weir/weir.sock", "runDir": "/run/weir", "mtu": 1400.0,
		"capabilities": map[string]any{"ips": true, "mac": true}}, plugin)
	write("")
	again, err := os.Stat(c.Path())
	require.NoError(t, err)
	require.True(t, os.SameFile(first, again), "an equal file was written again")
	c.MTU = 1500
	write("changed")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "a temporary file was left")
	require.NoError(t, c.Remove())
	require.NoError(t, c.Remove())
	require.NoFileExists(t, c.Path())
}
