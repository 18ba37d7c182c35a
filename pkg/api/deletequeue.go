package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/atomicfile"
)

// DeleteQueue is the agent's side of the queue of CNI deletions. A plugin that finds
// no agent that takes deletions queues under the lock, after it has asked once more;
// Drain opens the API under the same lock, so no request falls between.
type DeleteQueue struct {
	dir  string
	log  *slog.Logger
	lock *os.File
}

// ReplayResult counts what a replay did.
type ReplayResult struct {
	Done   int // deleted and taken off the queue
	Failed int // kept for the next start
	Bad    int // unreadable, set aside
}

// NewDeleteQueue names the queue of a run directory.
func NewDeleteQueue(runDir string, log *slog.Logger) *DeleteQueue {
	return &DeleteQueue{dir: filepath.Join(runDir, v1.QueueDir), log: log}
}

// take makes the folder where it is missing and waits for writers to finish.
func (q *DeleteQueue) take(ctx context.Context) error {
	if q.lock != nil {
		return errors.New("lock the delete queue: it is locked already")
	}
	if err := atomicfile.Dir(q.dir, 0o750); err != nil {
		return fmt.Errorf("make the delete queue: %w", err)
	}
	f, err := atomicfile.OpenLock(filepath.Join(q.dir, v1.QueueLock))
	if err != nil {
		return fmt.Errorf("open the delete queue's lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			q.lock = f
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return fmt.Errorf("lock the delete queue %s: %w", q.dir, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return fmt.Errorf("lock the delete queue %s: %w; see who holds %s", q.dir, ctx.Err(), f.Name())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// release lets plugins queue again.
func (q *DeleteQueue) release() {
	if q.lock != nil {
		q.lock.Close()
		q.lock = nil
	}
}

// request is one file of the queue.
type request struct {
	path string
	v1.QueuedDelete
}

// Drain calls del for every request, oldest first, and removes those that
// succeeded, until nothing is left that was not tried; then, while nobody can queue,
// it calls open, from which on deletions are taken directly. Plugins may queue while
// del runs. A request that cannot be read moves to the folder bad; a failed one
// stays for the next start. Only a queue that cannot be used is an error.
func (q *DeleteQueue) Drain(ctx context.Context, del func(context.Context, v1.QueuedDelete) error, open func()) (res ReplayResult, err error) {
	tried := map[string]bool{}
	for {
		todo, err := q.pending(ctx, tried, &res, open)
		if err != nil || len(todo) == 0 {
			return res, err
		}
		for _, r := range todo {
			tried[r.path] = true
			if err := ctx.Err(); err != nil {
				return res, fmt.Errorf("replay the delete queue: %w", err)
			}
			if err := del(ctx, r.QueuedDelete); err != nil {
				res.Failed++
				q.log.Warn("queued CNI deletion failed; it is tried again at the next start", "container", r.ContainerID, "interface", r.Interface, "error", err)
				continue
			}
			if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return res, fmt.Errorf("take a replayed request off the delete queue: %w", err)
			}
			delete(tried, r.path) // whoever queues it again means something newer
			res.Done++
		}
	}
}

// pending lists what was not tried yet, oldest first, and calls open if that is nothing.
func (q *DeleteQueue) pending(ctx context.Context, tried map[string]bool, res *ReplayResult, open func()) ([]request, error) {
	if err := q.take(ctx); err != nil {
		return nil, err
	}
	defer q.release()
	q.bringOut()
	entries, err := os.ReadDir(q.dir)
	if err != nil {
		return nil, fmt.Errorf("list the delete queue: %w", err)
	}
	var todo []request
	for _, e := range entries {
		path := filepath.Join(q.dir, e.Name())
		switch {
		case e.Name() == v1.QueueLock || atomicfile.IsAside(e.Name()) || tried[path]:
		case strings.HasPrefix(e.Name(), v1.QueueTemp):
			os.Remove(path) // its writer died; no writer is alive while the lock is held
		default:
			r, damage := readRequest(path)
			if damage != nil {
				res.Bad++
				q.log.Error("queued CNI deletion cannot be used; the endpoint goes when its interface is found missing", "error", damage)
				continue
			}
			todo = append(todo, request{path, r})
		}
	}
	slices.SortFunc(todo, func(a, b request) int { return a.Queued.Compare(b.Queued) })
	if len(todo) == 0 {
		open()
	}
	return todo, nil
}

// bringOut sets aside what former agents moved into a folder of its own.
func (q *DeleteQueue) bringOut() {
	bad := filepath.Join(q.dir, v1.QueueBadDir)
	entries, _ := os.ReadDir(bad) // mostly there is none
	for _, e := range entries {
		path := filepath.Join(q.dir, e.Name())
		if _, err := os.Lstat(path); err == nil || os.Rename(filepath.Join(bad, e.Name()), path) != nil {
			continue
		}
		_, _ = atomicfile.SetAside(path) // else it is read again, with the same result
	}
	os.Remove(bad) // fails while something is left in it
}

func readRequest(path string) (r v1.QueuedDelete, damage *atomicfile.Damage) {
	damage = atomicfile.Load(path, func(b []byte) error {
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		return r.Check()
	})
	return r, damage
}
