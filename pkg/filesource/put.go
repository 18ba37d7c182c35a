package filesource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// Put keeps the policies of a text in the agent's own folder and applies them,
// all or none. It returns the revision that has them.
func (s *Source) Put(text []byte, name string) (policies []*policytypes.Policy, revision uint64, problems []Problem, err error) {
	policies, problems = s.Check(text, name)
	if wrong := Errors(problems); len(wrong) > 0 {
		return nil, 0, wrong, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range policies {
		if file := s.fileOf(p.Resource.ID()); file != "" && filepath.Dir(file) != s.cfg.OwnDir {
			return nil, 0, nil, fmt.Errorf("%w: %s is defined in %s; change it there", ErrForeign, p.Resource, file)
		}
	}
	if err := os.MkdirAll(s.cfg.OwnDir, 0o700); err != nil {
		return nil, 0, nil, fmt.Errorf("keeping policies: %w", err)
	}
	docs, err := k8s.Split(text, name)
	if err != nil {
		return nil, 0, nil, err
	}
	if err := s.keep(docs); err != nil {
		return nil, 0, nil, fmt.Errorf("keeping policies: %w", err)
	}
	if err := s.scan(); err != nil {
		return nil, 0, nil, err
	}
	return policies, s.cfg.Policies.Revision(), nil, nil
}

// keep writes each document to a file of its own; temporary files first, so
// that a full disk changes nothing.
func (s *Source) keep(docs []k8s.Document) error {
	var names []string
	defer func() {
		for _, n := range names {
			os.Remove(n + ".tmp")
		}
	}()
	for _, d := range docs {
		obj, err := d.Policy()
		if err != nil {
			return err
		}
		text, err := d.Text()
		if err != nil {
			return err
		}
		name := s.ownFile(obj.ID())
		names = append(names, name)
		if err := os.WriteFile(name+".tmp", text, 0o600); err != nil {
			return err
		}
	}
	for _, n := range names {
		if err := os.Rename(n+".tmp", n); err != nil {
			return err
		}
	}
	return nil
}

// ownFile is the file of a resource in the agent's own folder. Names of
// Kubernetes objects hold neither slash nor underscore.
func (s *Source) ownFile(id string) string {
	return filepath.Join(s.cfg.OwnDir, strings.ReplaceAll(id, "/", "_")+".yaml")
}

// fileOf returns the file that a policy in force comes from, or "".
func (s *Source) fileOf(id string) string {
	ps := s.current.Policies[id]
	if len(ps) == 0 {
		return ""
	}
	return ps[0].Resource.File
}

// Delete takes a policy out of force that was put through the API.
func (s *Source) Delete(kind, namespace, name string) (policytypes.Resource, uint64, error) {
	id := policytypes.Resource{Kind: kind, Namespace: namespace, Name: name}
	s.mu.Lock()
	defer s.mu.Unlock()
	file := s.fileOf(id.ID())
	if file == "" {
		return id, 0, fmt.Errorf("%w: %s; list them with: weir policy list", ErrNotFound, id)
	}
	if filepath.Dir(file) != s.cfg.OwnDir {
		return id, 0, fmt.Errorf("%w: %s is defined in %s; delete it there", ErrForeign, id, file)
	}
	if err := os.Remove(file); err != nil {
		return id, 0, fmt.Errorf("deleting %s: %w", id, err)
	}
	if err := s.scan(); err != nil {
		return id, 0, err
	}
	return id, s.cfg.Policies.Revision(), nil
}
