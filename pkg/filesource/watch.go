package filesource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
)

// Times of the watch.
const (
	settle  = 50 * time.Millisecond  // after a change, until the writer is likely done
	atMost  = 250 * time.Millisecond // after the first of many changes
	rescan  = 5 * time.Second        // without any event: inotify may lose some
	whileIn = time.Second            // while something is held
)

// ask asks Run for a look, as Accept and Put do for what they leave waiting.
func (s *Source) ask() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// watch follows the folders of the sources and those below.
type watch struct {
	*fsnotify.Watcher
	dirs map[string]lastgood.Identity
}

// follow watches the folders that are there now, and reports whether one is new.
func (w *watch) follow(sources []string) (fresh bool) {
	now := map[string]lastgood.Identity{}
	for _, dir := range sources {
		if listing, err := Look(dir); err == nil {
			for d, id := range listing.Dirs {
				now[d] = id
			}
		}
	}
	for dir, id := range w.dirs {
		if now[dir] != id {
			_ = w.Remove(dir) // it may have gone by itself
			delete(w.dirs, dir)
		}
	}
	for dir, id := range now {
		if _, watched := w.dirs[dir]; !watched && w.Add(dir) == nil {
			w.dirs[dir], fresh = id, true
		}
	}
	return fresh
}

// Run watches the folders until ctx ends. It needs a first Scan.
func (s *Source) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching folders: %w; raise fs.inotify.max_user_instances", err)
	}
	defer watcher.Close()
	w := &watch{watcher, map[string]lastgood.Identity{}}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	w.follow(s.cfg.Dirs)
	var first time.Time // of the changes that were not looked at yet
	soon := func() {
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(min(settle, max(0, atMost-time.Since(first))))
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return errors.New("watching folders: the watcher ended")
			}
			soon()
		case <-s.kick:
			soon()
		case err := <-watcher.Errors:
			s.cfg.Logger.Warn("watching folders", "error", err)
			soon()
		case <-timer.C:
			first = time.Time{}
			next := s.look()
			if w.follow(s.cfg.Dirs) {
				next = settle // files may have come before the watch
			}
			timer.Reset(next)
		}
	}
}

// look scans once and returns when to do it again.
func (s *Source) look() time.Duration {
	err := s.Scan()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.cfg.Logger.Error("applying the folders; trying again", "error", err)
		return min(s.wake, whileIn)
	}
	if len(s.problems) > 0 {
		return min(s.wake, whileIn)
	}
	return s.wake
}
