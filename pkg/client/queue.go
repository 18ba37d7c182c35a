package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/atomicfile"
)

// ErrQueueFull says that the delete queue holds as many requests as it may.
var ErrQueueFull = errors.New("the delete queue is full")

// DeleteOrQueue removes the endpoint of an attachment. If the agent cannot be
// reached, or is starting, the request goes into the queue below runDir, from which
// the agent takes it before it takes deletions itself; queued is then true. The agent
// is asked once more under the queue's lock, under which it opens: so the request is
// either answered or carried out.
func (c *Client) DeleteOrQueue(ctx context.Context, runDir, containerID, ifName string) (queued bool, err error) {
	_, err = c.DeleteContainer(ctx, containerID, ifName)
	if !away(err) {
		return false, err
	}
	dir := filepath.Join(runDir, v1.QueueDir)
	lock, err := lockShared(ctx, dir)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if _, err = c.DeleteContainer(ctx, containerID, ifName); !away(err) {
		return false, err
	}
	r := v1.QueuedDelete{Version: v1.QueueVersion, ContainerID: containerID, Interface: ifName, Queued: time.Now().UTC()}
	if err := enqueue(dir, r); err != nil {
		return false, fmt.Errorf("queue the deletion of %s %s: %w", containerID, ifName, err)
	}
	return true, nil
}

// away reports that no agent took the request, or that it may not have ended: the
// agent does not run, went away meanwhile, or is starting.
func away(err error) bool {
	code := v1.CodeOf(err)
	return code == v1.CodeUnreachable || code == v1.CodeStarting
}

// lockShared takes the queue's lock as a writer; an agent holds it for moments only.
func lockShared(ctx context.Context, dir string) (*os.File, error) {
	if err := atomicfile.Dir(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the delete queue: %w", err)
	}
	f, err := atomicfile.OpenLock(filepath.Join(dir, v1.QueueLock))
	if err != nil {
		return nil, fmt.Errorf("open the delete queue's lock: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the delete queue %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for the agent, which replays the delete queue %s: %w", dir, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// enqueue writes the request to a temporary name and renames it.
func enqueue(dir string, r v1.QueuedDelete) error {
	if err := r.Check(); err != nil {
		return err
	}
	path := filepath.Join(dir, r.FileName())
	if _, err := os.Stat(path); err != nil {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(entries) >= v1.QueueEntries {
			return fmt.Errorf("%w: %d entries in %s; start weir-agent, which empties it", ErrQueueFull, len(entries), dir)
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, v1.QueueTemp+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
