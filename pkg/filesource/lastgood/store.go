package lastgood

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// Names below Config.Dir, and of the index in a directory.
const (
	sourcesDir = "sources"
	apiDir     = "policies"
	apiCopyDir = "policies.copy"
	indexName  = "index.json"
	copyName   = "sources.json" // of the index in the state directory
)

// Config says where the store is.
type Config struct {
	Dir      string // durable
	StateDir string // holds one more copy of the index; empty: none
	Logger   *slog.Logger
}

// Store keeps texts and index. It is for one writer at a time.
type Store struct {
	cfg     Config
	index   *Index
	lost    bool
	indexes []string
	damaged map[string]bool // texts that were told of
	pending map[string][]byte
}

// Open reads the index and makes what is missing of the directories.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, damaged: map[string]bool{}, pending: map[string][]byte{}}
	for _, name := range Folders() {
		if err := makeDir(filepath.Join(cfg.Dir, name)); err != nil {
			return nil, fmt.Errorf("keeping the last good versions of the sources: %w; give a directory with --data-dir that the agent may write", err)
		}
	}
	s.indexes = []string{filepath.Join(cfg.Dir, sourcesDir, indexName), filepath.Join(cfg.Dir, apiCopyDir, indexName)}
	if cfg.StateDir != "" {
		s.indexes = append(s.indexes, filepath.Join(cfg.StateDir, copyName))
	}
	index, damaged := openIndex(s.indexes)
	for _, err := range damaged {
		cfg.Logger.Error("A copy of what is known of the sources is damaged and was set aside", "error", err)
	}
	s.lost = index == nil && len(damaged) > 0
	if s.index = index; index == nil {
		s.index = &Index{}
	}
	return s, nil
}

// makeDir makes a directory; what else stands in its place is set aside.
func makeDir(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		if target, err := os.Stat(path); err == nil && target.IsDir() {
			return nil
		}
		if _, err := atomicfile.SetAside(path); err != nil {
			return err
		}
	}
	return os.MkdirAll(path, 0o700)
}

// Folders are the names of what a store keeps in its durable directory.
func Folders() []string { return []string{sourcesDir, apiDir, apiCopyDir} }

// Index is what was in force when the store was last written.
func (s *Store) Index() *Index { return s.index }

// Lost reports whether there was an index and no copy of it could be read.
func (s *Store) Lost() bool { return s.lost }

// New reports whether no agent has written an index yet.
func (s *Store) New() bool { return s.index.Generation == 0 && !s.lost }

// Text reads a version of a file of a source.
func (s *Store) Text(v Version) ([]byte, error) { return s.read(v, sourcesDir) }

// APIText reads a policy of the API, and restores a copy by the other.
func (s *Store) APIText(v Version) ([]byte, error) { return s.read(v, apiDir, apiCopyDir) }

// APIPath is where the policy of that id is kept.
func (s *Store) APIPath(id string) string { return filepath.Join(s.cfg.Dir, apiDir, apiName(id)) }

func (s *Store) read(v Version, dirs ...string) (good []byte, err error) {
	var bad []string
	for _, dir := range dirs {
		path := filepath.Join(s.cfg.Dir, dir, v.Name)
		text, failed := readText(path)
		if failed == nil && Sum(text) != v.Sum {
			failed = fmt.Errorf("%s is damaged: its sum is not the one that was noted", path)
		}
		if failed != nil {
			bad, err = append(bad, path), errors.Join(err, failed)
			continue
		}
		good = text
	}
	if good == nil {
		s.setAside(bad)
		return nil, err
	}
	s.setAside(bad)
	for _, path := range bad {
		if failed := atomicfile.WriteSync(path, good, 0o600); failed != nil {
			s.cfg.Logger.Warn("A copy of a policy is damaged and cannot be written again", "path", path, "error", failed)
		} else {
			s.cfg.Logger.Warn("A copy of a policy was missing or damaged and is written again from the other", "path", path)
		}
	}
	return good, nil
}

func (s *Store) setAside(paths []string) {
	for _, path := range paths {
		if _, err := os.Lstat(path); err != nil || s.damaged[path] {
			continue
		}
		if _, err := atomicfile.SetAside(path); err != nil {
			s.damaged[path] = true
			s.cfg.Logger.Warn("A damaged file could not be set aside", "path", path, "error", err)
		}
	}
}

// readText reads a file of the store: nothing but a file, and never waits.
func readText(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: errors.New("is no file")}
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Put keeps the text of a file until the next Commit names it. It is on the disk
// when Put returns.
func (s *Store) Put(file string, text []byte) (Version, error) {
	v := Version{Sum: Sum(text)}
	v.Name = fmt.Sprintf("%s.%s.yaml", clip(filepath.Base(file)), v.Sum[:32])
	return v, s.write(sourcesDir, v, text)
}

// PutAPI keeps a policy of the API. The second copy follows with Commit.
func (s *Store) PutAPI(id string, text []byte) (Version, error) {
	v := Version{Sum: Sum(text), Name: apiName(id)}
	err := s.write(apiDir, v, text)
	if err == nil {
		s.pending[v.Name] = text
	}
	return v, err
}

func (s *Store) write(dir string, v Version, text []byte) error {
	path := filepath.Join(s.cfg.Dir, dir, v.Name)
	if have, err := readText(path); err == nil && Sum(have) == v.Sum {
		return nil
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		s.setAside([]string{path})
	}
	if err := atomicfile.WriteSync(path, text, 0o600); err != nil {
		return fmt.Errorf("keeping a version before it is put in force: %w", err)
	}
	return nil
}

// Forget drops what PutAPI was given since the last Commit, and puts the texts that
// the index names back.
func (s *Store) Forget() {
	clear(s.pending)
	for _, f := range s.index.API {
		for _, v := range f.Versions {
			_, _ = s.APIText(v) // what cannot be read is told of at the next start
		}
	}
}

// Is reports whether an index says what the one that counts says.
func (s *Store) Is(x *Index) bool {
	now := *s.index
	now.Generation = x.Generation
	return !s.lost && s.index.Generation > 0 && reflect.DeepEqual(&now, x)
}

// Commit makes this index the one that counts, and then removes the texts that it
// does not name.
func (s *Store) Commit(x *Index) error {
	next := *x
	next.Generation = s.index.Generation + 1
	if err := writeIndex(s.indexes, &next); err != nil {
		return err
	}
	s.index, s.lost = &next, false
	for name, text := range s.pending {
		if err := atomicfile.WriteSync(filepath.Join(s.cfg.Dir, apiCopyDir, name), text, 0o600); err != nil {
			s.cfg.Logger.Warn("The second copy of a policy cannot be written", "name", name, "error", err)
		}
	}
	clear(s.pending)
	texts, api := map[string]bool{}, map[string]bool{}
	for _, src := range next.Sources {
		for _, f := range src.Files {
			for _, v := range f.Versions {
				texts[v.Name] = true
			}
		}
	}
	for _, f := range next.API {
		for _, v := range f.Versions {
			api[v.Name] = true
		}
	}
	sweep(filepath.Join(s.cfg.Dir, sourcesDir), texts)
	sweep(filepath.Join(s.cfg.Dir, apiDir), api)
	sweep(filepath.Join(s.cfg.Dir, apiCopyDir), api)
	return nil
}

// Found lists the texts of the API that are there whatever the index says, for a
// start without one: those of the first copy before those of the second.
func (s *Store) Found() [][]byte {
	var out [][]byte
	for _, dir := range []string{apiDir, apiCopyDir} {
		paths, _ := filepath.Glob(filepath.Join(s.cfg.Dir, dir, "*.yaml")) // fails for a bad pattern only
		for _, path := range paths {
			if text, err := readText(path); err == nil {
				out = append(out, text)
			}
		}
	}
	return out
}

// apiName is the name of the file of a policy. Names of Kubernetes objects hold
// neither slash nor underscore; one that is too long for a file's name ends in a sum.
func apiName(id string) string {
	name := strings.ReplaceAll(id, "/", "_")
	if len(name) > maxName {
		name = name[:maxName] + "." + Sum([]byte(id))[:16]
	}
	return name + ".yaml"
}

const maxName = 200

func clip(name string) string {
	name = strings.TrimPrefix(name, ".")
	return name[:min(len(name), maxName)]
}
