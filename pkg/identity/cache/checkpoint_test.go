package cache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
)

func TestKilledAgentFindsTheSameNumbers(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	c := open(t, cfg)
	a, p := take(t, c, app("a")), take(t, c, set(t, "cidr:10.0.0.0/8", "reserved:world-ipv4"))
	take(t, c, app("b"))

	c = open(t, cfg)
	require.Len(t, c.Snapshot(), len(identity.ReservedIdentities()), "restored numbers have no users yet")
	_, ok := c.LookupByID(a)
	require.False(t, ok)
	n := take(t, c, app("new"))
	require.Equal(t, a+2, n, "the search goes on behind the last number, and held ones are not given out")
	got, isNew, err := c.Allocate(ctx, set(t, "cidr:10.0.0.0/8", "reserved:world-ipv4"))
	require.NoError(t, err)
	require.True(t, isNew, "its first user since the restart")
	require.Equal(t, p, got.ID)
	require.Equal(t, a, take(t, c, app("a")))
	require.Equal(t, 1, c.ReleaseRestored(), "nobody came for b")
	require.Zero(t, c.ReleaseRestored())
}

func TestReleasedNumbersLeaveTheFileWithTheNextWrite(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	c := open(t, cfg)
	a := take(t, c, app("a"))
	_, err := c.Release(ctx, a)
	require.NoError(t, err)
	require.Len(t, open(t, cfg).byID, 1, "held without need")
	require.NoError(t, c.Sync(ctx))
	require.Empty(t, open(t, cfg).byID)
}

func TestBusyNumberGoesOnlyToTheSetOfTheCheckpoint(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Min: 256, Max: 258, Busy: []identity.NumericIdentity{256, 257}}
	c := open(t, Config{Dir: cfg.Dir, Min: 256, Max: 258})
	require.EqualValues(t, 256, take(t, c, app("a")))
	c = open(t, cfg)
	require.EqualValues(t, 258, take(t, c, app("b")))
	require.EqualValues(t, 256, take(t, c, app("a")))
	_, _, err := c.Allocate(ctx, app("c"))
	require.ErrorIs(t, err, ErrExhausted)
}

func logger() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}

func TestDamagedCheckpointIsMovedAsideAndItsNumbersStayUnused(t *testing.T) {
	for name, text := range map[string]string{
		"cut off":       `{"version":1,"next":{},"identities":[{"id":256,"labels":"k8s:app=a;"},{"id": 257,"lab`,
		"no version":    `{"identities":[{"id":256},{"id":257}]}`,
		"wrong type":    `{"version":1,"next":{},"identities":[{"id":256,"labels":7},{"id":257,"labels":""}]}`,
		"not an object": `["id",{"id":256},{"id":257}]`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, FileName)
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			log, out := logger()
			c := open(t, Config{Dir: dir, Logger: log})
			require.Contains(t, out.String(), "label sets that are not known otherwise get new numbers")
			require.EqualValues(t, 258, take(t, c, app("other")))
			aside, err := atomicfile.ListAside(dir)
			require.NoError(t, err)
			require.Len(t, aside, 1)
			kept, err := os.ReadFile(aside[0].Path)
			require.NoError(t, err)
			require.Equal(t, text, string(kept))
			require.EqualValues(t, 258, take(t, open(t, Config{Dir: dir}), app("other")), "a good file is there again")
		})
	}
}

func TestOneBadRecordDoesNotSpoilTheOthers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(`{"version":1,"next":{"global":256,"local":99},"identities":[
		{"id":256,"labels":"k8s:app=a"},{"id":257,"labels":"k8s:app=b;"},{"id":258,"labels":"k8s:app=b;"},{"id":257,"labels":"k8s:app=c;"},
		{"id":16777217,"labels":"k8s:app=d;"},{"id":1,"labels":"k8s:app=e;"},{"id":259,"labels":"k8s:app=x;reserved:init=;"}]}`), 0o600))
	log, out := logger()
	c := open(t, Config{Dir: dir, Logger: log})
	require.Equal(t, 6, bytes.Count(out.Bytes(), []byte("level=WARN")))
	require.EqualValues(t, 257, take(t, c, app("b")))
	require.EqualValues(t, 260, take(t, c, app("d")), "numbers of bad records stay unused")
}

func TestUnknownMembersOfTheCheckpointAreKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	require.NoError(t, os.WriteFile(path, []byte(
		`{"version":1,"next":{"global":300},"colour":"red","identities":[{"id":256,"labels":"k8s:app=a;","since":[1]}]}`), 0o600))
	c := open(t, Config{Dir: dir})
	require.EqualValues(t, 300, take(t, c, app("b")))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, "red", got["colour"])
	require.Equal(t, map[string]any{"id": 256.0, "labels": "k8s:app=a;", "since": []any{1.0}}, got["identities"].([]any)[0])
}

func TestAllocationsThatWaitShareOneWrite(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir()})
	started, proceed := make(chan struct{}, 100), make(chan struct{})
	writes := 0
	write := c.file.write
	c.file.write = func(path string, data []byte) error {
		writes++ // one writer at a time
		started <- struct{}{}
		<-proceed
		return write(path, data)
	}
	var wg sync.WaitGroup
	wg.Go(func() { take(t, c, app("first")) })
	<-started // the first write has copied its state
	const burst = 50
	var queued sync.WaitGroup
	queued.Add(burst)
	for i := range burst {
		wg.Go(func() {
			c.mu.Lock()
			_, _, err := c.take(app(fmt.Sprint(i)))
			generation := c.generation
			c.mu.Unlock()
			queued.Done()
			if err == nil {
				err = c.sync(ctx, generation)
			}
			require.NoError(t, err)
		})
	}
	queued.Wait()
	close(proceed)
	wg.Wait()
	require.Equal(t, 2, writes, "the first, and one for the whole burst")
	require.Len(t, open(t, Config{Dir: filepath.Dir(c.file.path)}).byID, burst+1)
}

func TestBatchIsOneWrite(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir()})
	writes, write := 0, c.file.write
	c.file.write = func(path string, data []byte) error { writes++; return write(path, data) }
	sets := make([]labels.LabelArray, 500)
	for i := range sets {
		sets[i] = app(fmt.Sprint(i))
	}
	c.AllocateAll(ctx, sets)
	require.Equal(t, 1, writes)
	c.AllocateAll(ctx, sets)
	require.Equal(t, 1, writes, "nothing new, nothing to write")
}

func TestNumberThatCannotBeRecordedIsNotGivenOut(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	c := open(t, cfg)
	full := errors.New("no space left on device")
	write := c.file.write
	c.file.write = func(string, []byte) error { return full }
	_, _, err := c.Allocate(ctx, app("a"))
	require.ErrorIs(t, err, full)
	require.ErrorContains(t, err, "k8s:app=a")
	require.ErrorContains(t, err, "free space")
	_, ok := c.LookupByLabels(app("a"))
	require.False(t, ok, "no reference is left")
	c.file.write = write
	id := take(t, c, app("a"))
	require.Equal(t, id, take(t, open(t, cfg), app("a")))
}

func TestWaitForTheDiskEndsWithTheContext(t *testing.T) {
	c := open(t, Config{Dir: t.TempDir()})
	<-c.file.turn // somebody is writing
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err := c.Allocate(done, app("a"))
	require.ErrorIs(t, err, context.Canceled)
	_, ok := c.LookupByLabels(app("a"))
	require.False(t, ok)
}

func TestN25ADirectoryInTheCheckpointsPlaceIsSetAside(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, FileName, "x"), 0o700))
	id := take(t, open(t, Config{Dir: dir}), app("a"))
	require.Equal(t, id, take(t, open(t, Config{Dir: dir}), app("a")), "a good file is there again")
}

// Without the checkpoint, numbers come from what else knows them, and those that
// nobody knows are given to nobody.
func TestN25ALostCheckpointKeepsTheNumbersThatAreKnownElsewhere(t *testing.T) {
	for name, text := range map[string]string{"lost": "", "damaged": "{", "in conflict": `{"version":1,"next":{},"identities":[{"id":301,"labels":"k8s:app=z;"}]}`} {
		dir := t.TempDir()
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600))
		}
		c := open(t, Config{Dir: dir, Busy: []identity.NumericIdentity{256, 300, 301}, Known: identity.IdentityMap{300: app("a"), 301: app("b")}})
		require.EqualValues(t, 300, take(t, c, app("a")), name)
		if name == "in conflict" {
			require.EqualValues(t, 301, take(t, c, app("z")), "the checkpoint is believed first")
			require.EqualValues(t, 257, take(t, c, app("b")))
			continue
		}
		require.EqualValues(t, 301, take(t, c, app("b")), name)
		require.EqualValues(t, 257, take(t, c, app("new")), name)
	}
}

func TestTheCheckpointOfAFormerBuildIsTakenOver(t *testing.T) {
	dir, former := t.TempDir(), filepath.Join(t.TempDir(), "local_allocator_state.json")
	require.NoError(t, os.WriteFile(former, []byte(`{"version":1,"next":{"global":300},"identities":[{"id":256,"labels":"k8s:app=a;"}]}`), 0o600))
	require.EqualValues(t, 256, take(t, open(t, Config{Dir: dir, Former: former}), app("a")))
	require.NoFileExists(t, former)
	require.EqualValues(t, 256, take(t, open(t, Config{Dir: dir, Former: former}), app("a")))
}

func TestTheCheckpointOfANewerBuildIsReadAsFarAsItIsKnown(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(`{"version":2,"more":1,"next":{},"identities":[{"id":300,"labels":"k8s:app=a;"}]}`), 0o600))
	require.EqualValues(t, 300, take(t, open(t, Config{Dir: dir}), app("a")))
}

func TestLeftoverTemporaryFileIsHarmless(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, FileName+".tmp"), []byte("{"), 0o600))
	id := take(t, open(t, cfg), app("a"))
	require.Equal(t, id, take(t, open(t, cfg), app("a")))
	files, err := os.ReadDir(cfg.Dir)
	require.NoError(t, err)
	require.Len(t, files, 1)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"version":1,"next":{"global":300},"identities":[{"id":256,"labels":"k8s:app=a;"}]}`))
	f.Add([]byte(`{"version":1,"next":null,"identities":[null,{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, extra, err := decode(data)
		if err != nil {
			return
		}
		out, err := encode(s, extra)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := decode(out); err != nil {
			t.Fatalf("%s became %s: %v", data, out, err)
		}
	})
}
