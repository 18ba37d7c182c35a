package filesource

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/filesource/lastgood"
)

// formerPolicies is where agents without a data directory kept the policies that
// were put through the API, below the state directory.
const formerPolicies = "policies"

// open reads what was in force when the last agent ended.
func (s *Source) open() error {
	if s.store != nil {
		return nil
	}
	store, err := lastgood.Open(lastgood.Config{Dir: s.cfg.DataDir, StateDir: s.cfg.StateDir, Logger: s.cfg.Logger})
	if err != nil {
		return err
	}
	x := store.Index()
	s.upgrade = store.New() && s.formerAgent()
	for _, dir := range s.cfg.Dirs {
		known := x.Sources[dir]
		if known == nil {
			known = &lastgood.Source{}
			if store.Lost() || s.upgrade { // else a first install, or a folder that is new in the configuration
				known.Flat, known.Unknown = s.upgrade, s.started.UTC().Round(0)
			}
		}
		s.folders = append(s.folders, s.known(store, dir, known, x.Boot == s.cfg.Boot))
	}
	for id, f := range x.API {
		s.api[id] = s.readVersions(f, store.APIPath(id), store.APIText)
	}
	if store.Lost() || store.New() {
		for _, text := range store.Found() {
			s.adopt(store, text)
		}
	}
	s.takeOver(store)
	s.store = store
	return nil
}

// known is a folder as the index has it.
func (s *Source) known(store *lastgood.Store, dir string, x *lastgood.Source, sameBoot bool) *folder {
	f := &folder{path: dir, dirs: map[string]lastgood.Identity{}, files: map[string]*file{}, flat: x.Flat, unknown: x.Unknown}
	for d, id := range x.Dirs {
		if f.dirs[d] = (lastgood.Identity{}); sameBoot {
			f.dirs[d] = id
		}
	}
	for path, known := range x.Files {
		f.files[path] = s.readVersions(known, path, store.Text)
	}
	return f
}

// readVersions reads what of a file was in force. What cannot be read is known by
// the index alone.
func (s *Source) readVersions(x *lastgood.File, path string, read func(lastgood.Version) ([]byte, error)) *file {
	f := &file{state: StateGood}
	for _, known := range x.Versions {
		v := version{Version: known}
		text, err := read(known)
		if err == nil {
			v.contents, err = parse(text, path, s.cfg.Options)
		}
		if v.err = err; err != nil {
			v.contents = nil
			s.cfg.Logger.Error("A version that was in force cannot be read", "file", path, "error", err)
		} else if known.Only != nil {
			ids := map[string]bool{}
			for _, id := range known.Only {
				ids[id] = true
			}
			v.contents = v.contents.only(ids)
		}
		f.versions = append(f.versions, v)
	}
	if f.state = lostOr(f, StateGood); f.state == StateLost {
		f.since = s.started
	}
	return f
}

// formerAgent reports whether an agent that kept no index ran here.
func (s *Source) formerAgent() bool {
	if s.cfg.StateDir == "" {
		return false
	}
	records, _ := filepath.Glob(filepath.Join(s.cfg.StateDir, "endpoints", "*")) // fails for a bad pattern only
	_, policies := os.Stat(filepath.Join(s.cfg.StateDir, formerPolicies))
	_, rules := os.Stat(filepath.Join(s.cfg.StateDir, "rules.json"))
	return len(records) > 0 || policies == nil || rules == nil
}

// adopt takes a policy that was put through the API from its text, unless it is
// known. It reports whether the text holds policies alone.
func (s *Source) adopt(store *lastgood.Store, text []byte) bool {
	c, err := parse(text, "", s.cfg.Options)
	if err != nil || len(c.order) != 1 || len(c.policies) != 1 {
		return false
	}
	id := c.order[0]
	if f := s.api[id]; f != nil && f.state == StateGood {
		return true
	}
	kept, err := store.PutAPI(id, text)
	if err != nil {
		s.cfg.Logger.Error("A policy put through the API cannot be kept", "policy", id, "error", err)
		return false
	}
	if c, err = parse(text, store.APIPath(id), s.cfg.Options); err != nil {
		return false
	}
	v := newVersion("", c)
	v.Name, v.Sum, v.Good = kept.Name, kept.Sum, s.started.UTC().Round(0)
	s.api[id] = &file{versions: []version{v}, state: StateGood}
	return true
}

// takeOver takes what former agents kept of the API. What is damaged is set aside and
// known by the name of its file.
func (s *Source) takeOver(store *lastgood.Store) {
	if s.cfg.StateDir == "" {
		return
	}
	dir := filepath.Join(s.cfg.StateDir, formerPolicies)
	paths, _ := filepath.Glob(filepath.Join(dir, "*.yaml")) // fails for a bad pattern only
	for _, path := range paths {
		text, err := ReadFile(path)
		if err == nil && s.adopt(store, text) {
			continue
		}
		id := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".yaml"), "_", "/")
		if strings.Count(id, "/") != 2 || s.api[id] != nil {
			continue
		}
		s.cfg.Logger.Error("A policy put through the API of a former agent cannot be read", "path", path, "error", err)
		v := version{Version: lastgood.Version{Name: lostName, Good: s.started.UTC().Round(0), Objects: 1, Policies: []lastgood.Policy{{ID: id}}}, err: errors.New("is damaged")}
		s.api[id] = &file{versions: []version{v}, state: StateLost, since: s.started}
		if _, err := atomicfile.SetAside(path); err != nil {
			s.cfg.Logger.Warn("A damaged file could not be set aside", "path", path, "error", err)
		}
	}
	s.former = paths // they go once the first look has kept all
}

// lostName is the name of a text that never was in the store.
const lostName = "none"

// dropFormer removes what has been taken over.
func (s *Source) dropFormer() {
	for _, path := range s.former {
		os.Remove(path)
	}
	if len(s.former) > 0 {
		os.Remove(filepath.Join(s.cfg.StateDir, formerPolicies)) // fails while something was set aside in it
	}
	s.former = nil
}
