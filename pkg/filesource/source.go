package filesource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
)

// Times of the watch.
const (
	settle = 50 * time.Millisecond // after a change, until the writer is likely done
	rescan = 5 * time.Second       // without any event: inotify may lose some
)

// policies is the repository as this package needs it.
type policies interface {
	ReplaceByResource(resource string, ps []*policytypes.Policy) (revision uint64, err error)
	DeleteByResource(resource string) (revision uint64, err error)
	Revision() uint64
}

// Config of a Source.
type Config struct {
	Options
	Dirs     []string // folders to watch; one that is missing is waited for
	OwnDir   string   // folder for policies put through the API; watched too
	Tables   *workload.Tables
	Policies policies
	Logger   *slog.Logger
	Changed  func(Change) // told of every file whose objects in force changed; nil: nobody is
}

// Source applies the folders to the tables and the repository.
type Source struct {
	cfg Config

	mu       sync.Mutex // one scan at a time; guards what follows
	reader   *reader
	current  *Snapshot
	problems []Problem
	synced   bool
}

// New returns a source that has read nothing yet.
func New(cfg Config) *Source {
	return &Source{cfg: cfg, reader: newReader(cfg.Options), current: &Snapshot{}}
}

// Problems lists what a person must mend, in the order of files.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems
}

// WasGood reports whether a version of a file, or of a file of a folder, was good,
// so that it stays in force.
func (s *Source) WasGood(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader.wasGood(path)
}

// wasGood reports whether a version of the file, or of a file of the folder, was good.
func (r *reader) wasGood(path string) bool {
	for name, f := range r.files {
		if f.good != nil && (name == path || filepath.Dir(name) == path) {
			return true
		}
	}
	return false
}

// Scan reads the folders once and applies what changed. The first scan marks
// the tables as synced.
func (s *Source) Scan() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scan()
}

func (s *Source) scan() error {
	snap, problems := s.reader.scan(s.paths())
	for _, p := range problems {
		switch {
		case slices.Contains(s.problems, p):
		case p.Warning:
			s.cfg.Logger.Warn("a policy of the source names what is not there", "problem", p.String())
		case !s.reader.wasGood(p.File):
			s.cfg.Logger.Warn("a file of the source is wrong and no version of it was good yet; nothing of that file is in force", "problem", p.String())
		default:
			s.cfg.Logger.Warn("a file of the source is wrong; its last good version stays in force", "problem", p.String())
		}
	}
	s.problems = problems
	err := s.apply(snap)
	if err == nil {
		s.tellChanges(s.current, snap)
		s.current = snap
	}
	return err
}

func (s *Source) paths() []string {
	paths := slices.Clone(s.cfg.Dirs)
	if s.cfg.OwnDir != "" {
		if _, err := os.Stat(s.cfg.OwnDir); err == nil {
			paths = append(paths, s.cfg.OwnDir)
		}
	}
	return paths
}

// apply writes the difference to the last snapshot: policies first, so that a
// pod never appears before the policy of the same change.
func (s *Source) apply(snap *Snapshot) error {
	var errs []error
	for id, ps := range snap.Policies {
		if !reflect.DeepEqual(ps, s.current.Policies[id]) {
			_, err := s.cfg.Policies.ReplaceByResource(id, ps)
			errs = append(errs, err)
		}
	}
	txn := s.cfg.Tables.Write()
	defer txn.Abort()
	diff(s.current.Namespaces, snap.Namespaces, txn.PutNamespace, func(n *workload.Namespace) { txn.DeleteNamespace(n.Name) })
	diff(s.current.nodes(), snap.nodes(), txn.PutNode, func(n *workload.Node) { txn.DeleteNode(n.Name) })
	diff(s.current.Pods, snap.Pods, txn.PutPod, func(p *workload.Pod) { txn.DeletePod(p.Namespace, p.Name) })
	for id := range s.current.Policies {
		if _, still := snap.Policies[id]; !still {
			_, err := s.cfg.Policies.DeleteByResource(id)
			errs = append(errs, err)
		}
	}
	if !s.synced {
		txn.MarkSynced()
		s.synced = true
	}
	txn.Commit()
	return errors.Join(errs...)
}

// diff calls put for rows that are new or changed and del for rows that are gone.
func diff[T any](old, new map[string]*T, put, del func(*T)) {
	for k, v := range new {
		if o, ok := old[k]; !ok || !reflect.DeepEqual(o, v) {
			put(v)
		}
	}
	for k, v := range old {
		if _, still := new[k]; !still {
			del(v)
		}
	}
}

// Run watches the folders until ctx ends. It needs a first Scan.
func (s *Source) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching folders: %w; raise fs.inotify.max_user_instances", err)
	}
	defer watcher.Close()
	watched := map[string]bool{}
	timer := time.NewTimer(rescan)
	defer timer.Stop()
	for {
		for _, dir := range s.paths() {
			if !watched[dir] && watcher.Add(dir) == nil {
				watched[dir] = true
				timer.Reset(settle) // files may have come before the watch
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-watcher.Events:
			if !ok {
				return errors.New("watching folders: the watcher ended")
			}
			if e.Has(fsnotify.Remove) && watched[filepath.Clean(e.Name)] {
				delete(watched, filepath.Clean(e.Name))
			}
			timer.Reset(settle)
		case err := <-watcher.Errors:
			s.cfg.Logger.Warn("watching folders", "error", err)
			timer.Reset(settle)
		case <-timer.C:
			if err := s.Scan(); err != nil {
				s.cfg.Logger.Error("applying the folders; trying again", "error", err)
			}
			timer.Reset(rescan)
		}
	}
}
