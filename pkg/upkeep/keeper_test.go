package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/health"
)

func TestN31WhatOthersTookAwayIsPutBackAndTold(t *testing.T) {
	var order []string
	there, broken := false, error(nil)
	lost := health.Warning{Code: "lost", Subject: "it"}
	steps := []Step{
		{Name: "First", Ensure: func(context.Context) (Result, error) { return Result{}, broken },
			Undo: func(context.Context) error { order = append(order, "first"); return errors.New("no") }},
		{Name: "Second", Codes: []string{"lost"}, Ensure: func(context.Context) (r Result, err error) {
			if !there {
				r.Changed, r.Warnings = []string{"it was removed"}, []health.Warning{lost}
			}
			there = true
			return r, nil
		}, Undo: func(context.Context) error { order = append(order, "second"); return nil }},
	}
	warnings := health.New()
	k := New(slog.New(slog.DiscardHandler), warnings, steps...)
	codes := func() (out []string) {
		for _, w := range warnings.List() {
			out = append(out, w.Code)
		}
		return out
	}
	require.NoError(t, k.SetUp(t.Context()))
	require.Equal(t, []string{"lost"}, codes(), "what was missing before the first set-up is nobody's doing")
	k.check(t.Context())
	require.Empty(t, codes())
	there, broken = false, errors.New("not now")
	k.check(t.Context())
	require.Equal(t, []string{codeFailing, "lost", codePutBack}, codes(), "a step that fails does not stop the others")
	broken = nil
	k.check(t.Context())
	require.Equal(t, []string{codePutBack}, codes())
	require.ErrorContains(t, k.Undo(t.Context()), "undo first: no")
	require.Equal(t, []string{"second", "first"}, order)
	broken = errors.New("not now")
	require.Error(t, k.SetUp(t.Context()))
}
