package filesource

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
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
	Dirs     []string // folders to watch
	DataDir  string   // durable: last good versions, policies put through the API
	StateDir string   // of the agent; holds a copy of what is known, and what former agents kept. Empty: none
	Boot     string   // of the node; see lastgood.Index
	Tables   *workload.Tables
	Policies policies
	Warnings *health.Registry // nil: nobody is told
	Logger   *slog.Logger
	// Pods names the endpoints that the function is true for; nil: there are none.
	Pods func(func(labels.LabelArray) bool) []string
	// Found is called when objects that could not be read can be again, with those
	// that it matters to; nil: nobody.
	Found   func(func(labels.LabelArray) bool)
	Changed func(Change) // told of every file whose objects in force changed; nil: nobody is
}

// Source applies the folders to the tables and the repository.
type Source struct {
	cfg  Config
	lost atomic.Pointer[[]Lost]
	kick chan struct{} // asks Run for a look
	now  func() time.Time

	mu      sync.Mutex // one scan at a time; guards what follows
	started time.Time
	store   *lastgood.Store // nil before the first scan
	upgrade bool            // a former agent kept no index
	former  []string        // files of a former agent that are taken over
	folders []*folder
	api     map[string]*file // policies put through the API, by resource id
	merger  *merger
	current *Snapshot
	// What the last scan found.
	problems []Problem
	unkept   error // why changes are not in force: they cannot be kept
	wake     time.Duration
	synced   bool
}

// New returns a source that has read nothing yet.
func New(cfg Config) *Source {
	if cfg.Warnings == nil {
		cfg.Warnings = health.New()
	}
	cfg.Dirs = slices.Clone(cfg.Dirs)
	for i, dir := range cfg.Dirs {
		cfg.Dirs[i] = filepath.Clean(dir)
	}
	return &Source{cfg: cfg, merger: &merger{options: cfg.Options}, current: &Snapshot{}, api: map[string]*file{}, started: time.Now(),
		kick: make(chan struct{}, 1), now: time.Now}
}

// Problems lists what a person must mend, in the order of files.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problems
}

// Scan looks at the folders once and applies what changed. The first scan reads what
// was in force before and marks the tables as synced.
func (s *Source) Scan() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scan("")
}

// scan looks at the folders. accept is one that is meant to be as it is.
func (s *Source) scan(accept string) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.scanWith(accept, s.api)
}

// scanWith is scan with these policies put through the API.
func (s *Source) scanWith(accept string, api map[string]*file) error {
	l := &look{now: s.now(), options: s.cfg.Options, upgrade: s.upgrade}
	next := make([]*folder, len(s.folders))
	for i, f := range s.folders {
		l.accept = f.path == accept
		next[i] = l.folder(f)
	}
	if s.wake = l.wake; s.wake == 0 {
		s.wake = rescan
	}
	return s.put(next, api)
}

// put keeps what is to be in force on disk and then puts it in force. What cannot be
// kept is not: what was in force stays.
func (s *Source) put(folders []*folder, api map[string]*file) error {
	if err := s.keep(folders, api); err != nil {
		first := s.unkept == nil
		s.unkept = err
		if !s.synced {
			return err
		}
		if first {
			s.cfg.Logger.Error("Changes of the sources cannot be kept and are not put in force", "error", err)
		}
		s.tell()
		return err
	}
	s.unkept, s.upgrade = nil, false
	s.dropFormer()
	s.folders, s.api = folders, api
	snap, problems := s.merger.merge(s.entries())
	s.problems = append(s.wrong(), problems...)
	lost := findLost(folders, api, snap, s.started)
	found := s.nowFound(lost)
	closed := append(slices.Clone(found), lost...) // until the policies are in force
	s.lost.Store(&closed)
	err := s.apply(snap)
	if err == nil {
		s.tellChanges(s.current, snap)
		s.current = snap
	}
	s.lost.Store(&lost)
	s.tell()
	if len(found) > 0 && s.cfg.Found != nil {
		s.cfg.Found(func(ls labels.LabelArray) bool {
			return slices.ContainsFunc(found, func(l Lost) bool { return l.selects(ls) })
		})
	}
	return err
}

// nowFound are those of the last scan that are not lost any more.
func (s *Source) nowFound(lost []Lost) []Lost {
	before := s.lost.Load()
	if before == nil {
		return nil
	}
	return filter(*before, func(l Lost) bool {
		return !slices.ContainsFunc(lost, func(o Lost) bool { return o.Object == l.Object && o.File == l.File })
	})
}

// keep writes what is new to the disk.
func (s *Source) keep(folders []*folder, api map[string]*file) error {
	x := &lastgood.Index{Boot: s.cfg.Boot, Sources: map[string]*lastgood.Source{}, API: map[string]*lastgood.File{}}
	for _, f := range folders {
		for path, one := range f.files {
			for i := range one.versions {
				v := &one.versions[i]
				if v.text == "" {
					continue
				}
				kept, err := s.store.Put(path, []byte(v.text))
				if err != nil {
					return err
				}
				v.Name, v.Sum, v.text = kept.Name, kept.Sum, ""
			}
		}
		x.Sources[f.path] = f.index()
	}
	for id, one := range api {
		x.API[id] = indexed(one.versions)
	}
	if s.store.Is(x) {
		return nil
	}
	return s.store.Commit(x)
}

// entries is what is in force of every file.
func (s *Source) entries() []entry {
	var out []entry
	add := func(path string, f *file) {
		for i, v := range f.versions {
			out = append(out, entry{path: path, contents: v.contents, firm: f.state != StateGood, rest: i > 0 || f.state == StateGone})
		}
	}
	for _, f := range s.folders {
		for path, one := range f.files {
			add(path, one)
		}
	}
	for id, one := range s.api {
		add(s.store.APIPath(id), one)
	}
	return out
}

// wrong lists the problems of folders and files.
func (s *Source) wrong() []Problem {
	var out []Problem
	for _, f := range s.folders {
		if f.missing != "" {
			out = append(out, Problem{File: f.path, Text: f.missing})
		}
		for _, dir := range slices.Sorted(maps.Keys(f.held)) {
			out = append(out, Problem{File: dir, Text: f.held[dir].why + "; what it held stays in force; if that is meant: " + f.command()})
		}
		for _, path := range slices.Sorted(maps.Keys(f.files)) {
			out = append(out, f.files[path].problems...)
		}
	}
	return out
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

// ErrNoSource says that a folder is no source of the agent.
var ErrNoSource = errors.New("no such source")

// Accept says that a folder is meant to be as it is now: what it does not hold any
// more is deleted, and the folders below it count.
func (s *Source) Accept(dir string) (FolderStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir = filepath.Clean(dir)
	i := slices.IndexFunc(s.folders, func(f *folder) bool { return f.path == dir })
	if i < 0 {
		return FolderStatus{}, fmt.Errorf("%w: %s; the agent reads %v", ErrNoSource, dir, s.cfg.Dirs)
	}
	if err := s.scan(dir); err != nil {
		return FolderStatus{}, err
	}
	s.ask()
	return s.folderStatus(s.folders[i]), nil
}
