package filesource

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/weirnet/weir/pkg/policy/k8s"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// ErrNotFound says that no such policy is in force.
var ErrNotFound = errors.New("no such policy")

// ErrForeign says that a policy comes from a file of a watched folder.
var ErrForeign = errors.New("the policy comes from a watched folder")

// Check reads a text as Put would and returns the policies, changing nothing.
// With warnings alone there are policies.
func (s *Source) Check(text []byte, name string) ([]*policytypes.Policy, []Problem) {
	docs, err := k8s.Split(text, name)
	if err != nil {
		return nil, problemsOf(err, name)
	}
	c := newContents()
	var errs []error
	for _, d := range docs {
		if !d.IsPolicy() {
			errs = append(errs, problem(d, "kind", "is no kind of policy; only policies can be put here"))
			continue
		}
		if err := c.add(d, s.cfg.Options); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, problemsOf(err, name)
	}
	s.mu.Lock()
	options := s.cfg.translation(s.current.References)
	s.mu.Unlock()
	var out []*policytypes.Policy
	var warnings []Problem
	for _, id := range c.order {
		tr, err := k8s.TranslateTraced(c.policies[id].object, options)
		if err != nil {
			return nil, problemsOf(err, name)
		}
		out = append(out, tr.Policies...)
		warnings = append(warnings, warningsOf(tr)...)
	}
	if len(out) == 0 {
		return nil, []Problem{{File: name, Text: "holds no policy"}}
	}
	return out, warnings
}

// Put keeps the policies of a text and applies them, all or none. It returns the
// revision that has them.
func (s *Source) Put(text []byte, name string) (policies []*policytypes.Policy, revision uint64, problems []Problem, err error) {
	policies, problems = s.Check(text, name)
	if wrong := Errors(problems); len(wrong) > 0 {
		return nil, 0, wrong, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return nil, 0, nil, err
	}
	for _, p := range policies {
		id := p.Resource.ID()
		if file := s.fileOf(id); file != "" && file != s.store.APIPath(id) {
			return nil, 0, nil, fmt.Errorf("%w: %s is defined in %s; change it there", ErrForeign, p.Resource, file)
		}
	}
	docs, err := k8s.Split(text, name)
	if err != nil {
		return nil, 0, nil, err
	}
	api := maps.Clone(s.api)
	for _, d := range docs {
		if err = s.keepPolicy(api, d); err != nil {
			break
		}
	}
	if err == nil {
		err = s.scanWith("", api)
	}
	if err != nil {
		s.store.Forget()
		return nil, 0, nil, fmt.Errorf("keeping policies: %w", err)
	}
	return policies, s.cfg.Policies.Revision(), nil, nil
}

// keepPolicy writes a policy to its place and puts it among those of the API.
func (s *Source) keepPolicy(api map[string]*file, d k8s.Document) error {
	obj, err := d.Policy()
	if err != nil {
		return err
	}
	text, err := d.Text()
	if err != nil {
		return err
	}
	id := obj.ID()
	c, err := parse(text, s.store.APIPath(id), s.cfg.Options)
	if err != nil {
		return err
	}
	kept, err := s.store.PutAPI(id, text)
	if err != nil {
		return err
	}
	v := newVersion("", c)
	v.Name, v.Sum, v.Good = kept.Name, kept.Sum, time.Now().UTC().Round(0)
	if old := s.api[id]; old != nil && old.versions[0].Sum == v.Sum {
		v.Good = old.versions[0].Good
	}
	api[id] = &file{versions: []version{v}, state: StateGood}
	return nil
}

// fileOf returns the file that a policy in force comes from, or "".
func (s *Source) fileOf(id string) string {
	ps := s.current.Policies[id]
	if len(ps) == 0 {
		return ""
	}
	return ps[0].Resource.File
}

// isOwn reports whether a file holds a policy that was put through the API.
func (s *Source) isOwn(file string) bool {
	return filepath.Dir(file) == filepath.Dir(s.store.APIPath(""))
}

// Delete takes a policy out of force that was put through the API, also one that
// cannot be read.
func (s *Source) Delete(kind, namespace, name string) (policytypes.Resource, uint64, error) {
	r := policytypes.Resource{Kind: kind, Namespace: namespace, Name: name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(); err != nil {
		return r, 0, err
	}
	id := r.ID()
	if s.api[id] == nil {
		if file := s.fileOf(id); file != "" {
			return r, 0, fmt.Errorf("%w: %s is defined in %s; delete it there", ErrForeign, r, file)
		}
		return r, 0, fmt.Errorf("%w: %s; list them with: weir policy list", ErrNotFound, r)
	}
	api := maps.Clone(s.api)
	delete(api, id)
	if err := s.scanWith("", api); err != nil {
		return r, 0, fmt.Errorf("deleting %s: %w", r, err)
	}
	return r, s.cfg.Policies.Revision(), nil
}
