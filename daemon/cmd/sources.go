package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/repository"
	"github.com/weirnet/weir/pkg/workload"
)

func newSource(cfg *Config, st *state, tables *workload.Tables, repo *repository.Repository, l *late, warnings *health.Registry, log *slog.Logger) *filesource.Source {
	c := filesource.Config{
		Options: filesource.Options{ClusterName: cfg.ClusterName, Labels: cfg.identity, NodeName: cfg.NodeName},
		DataDir: cfg.DataDir, StateDir: cfg.StateDir, Boot: st.boot, Tables: tables, Policies: repo, Warnings: warnings, Logger: log,
		Pods: l.podsThat, Found: l.buildAgain, Changed: fileChanges(log),
	}
	if cfg.SourceDir != "" {
		c.Dirs = []string{cfg.SourceDir}
	}
	return filesource.New(c)
}

// podsThat names the endpoints whose labels the function is true for.
func (l *late) podsThat(is func(labels.LabelArray) bool) []string {
	var out []string
	for _, e := range l.selected(is) {
		out = append(out, who(e.Row()))
	}
	return out
}

// buildAgain lets these endpoints take the policy that can be read again.
func (l *late) buildAgain(is func(labels.LabelArray) bool) {
	for _, e := range l.selected(is) {
		e.Regenerate(regeneration.LevelPolicy, "what selects it can be read again")
	}
}

func (l *late) selected(is func(labels.LabelArray) bool) (out []*endpoint.Endpoint) {
	if l.manager == nil {
		return nil
	}
	for _, e := range l.manager.List() {
		if r := e.Row(); r.State.Alive() && is(r.Labels) {
			out = append(out, e)
		}
	}
	return out
}

// admission refuses new pods that an object may select which is in force and
// cannot be read.
func admission(s *filesource.Source) func(endpoint.Pod, labels.LabelArray) error {
	return func(pod endpoint.Pod, ls labels.LabelArray) error {
		lost, is := s.Lost(ls)
		if !is {
			return nil
		}
		return v1.Errorf(v1.CodeNotReady, "weir status names the way out", "pod %s is refused at %s: %s, and it may select the pod", pod, regeneration.StationAPIAccept, lost)
	}
}

// sources lists and accepts sources (pkg/api sourceKeeper).
type sources struct {
	source *filesource.Source
}

func (s sources) Sources(context.Context) []gen.Source {
	var out []gen.Source
	for _, f := range s.source.Sources() {
		out = append(out, sourceModel(f))
	}
	return out
}

func (s sources) Accept(_ context.Context, folder string) (gen.Source, error) {
	f, err := s.source.Accept(folder)
	switch {
	case errors.Is(err, filesource.ErrNoSource):
		return gen.Source{}, v1.NewError(v1.CodeNotFound, err, "weir source list")
	case err != nil:
		return gen.Source{}, fmt.Errorf("accepting %s: %w", folder, err)
	}
	return sourceModel(f), nil
}

func sourceModel(f filesource.FolderStatus) gen.Source {
	out := gen.Source{Path: f.Path, State: gen.SourceState(f.State), Since: f.Since, Text: f.Text, Files: []gen.SourceFile{}}
	for _, one := range f.Files {
		out.Files = append(out.Files, gen.SourceFile{Path: one.Path, State: gen.SourceState(one.State), Since: one.Since, Text: one.Text,
			LastGood: one.LastGood, Sha256: one.Sum, Keeps: one.Kept})
	}
	return out
}
