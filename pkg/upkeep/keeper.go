package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/health"
)

// Codes of the warnings that a Keeper sets itself.
const (
	codePutBack = "put-back"   // something was taken away and is there again
	codeFailing = "node-setup" // a step cannot be done
)

// Step is one thing on the node.
type Step struct {
	Name string
	// Ensure makes it so, and may be called at any time again.
	Ensure func(context.Context) (Result, error)
	Undo   func(context.Context) error             // nil: nothing to undo
	List   func(context.Context) ([]string, error) // what Undo would take back; nil with Undo
	Codes  []string                                // of the warnings that Ensure returns
}

// Result of a step.
type Result struct {
	Changed  []string // what was not so and is now, one sentence each without an end
	Warnings []health.Warning
}

// Keeper keeps the node as pods need it.
type Keeper struct {
	log      *slog.Logger
	warnings *health.Registry

	mu      sync.Mutex // one run at a time
	steps   []Step
	setUp   bool           // by SetUp, so that changes are others' doing
	putBack map[string]int // by what
}

// New makes a Keeper of steps in their order. Without a log and warnings it can
// only Undo.
func New(log *slog.Logger, warnings *health.Registry, steps ...Step) *Keeper {
	return &Keeper{log: log, warnings: warnings, steps: steps, putBack: map[string]int{}}
}

// SetUp does all steps; the first that fails ends it.
func (k *Keeper) SetUp(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.steps {
		r, err := s.Ensure(ctx)
		if err != nil {
			return err
		}
		k.tell(s, r)
	}
	k.setUp = true
	return nil
}

// Add does a step that comes later, and keeps it from then on.
func (k *Keeper) Add(ctx context.Context, s Step) error {
	if _, err := s.Ensure(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.steps = append(k.steps, s)
	return nil
}

// Run does all steps again and again until ctx ends.
func (k *Keeper) Run(ctx context.Context, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		k.check(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// check does all steps once.
func (k *Keeper) check(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var failing []health.Warning
	for _, s := range k.steps {
		r, err := s.Ensure(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // its former warnings stand
			failing = append(failing, health.Warning{Subject: s.Name, Breaks: health.BreaksPods, Text: fmt.Sprintf("%s: %v", s.Name, err), Next: "see the agent's log; it tries again by itself"})
			k.log.Warn("The node cannot be kept as pods need it; tried again", "step", s.Name, "error", err)
			continue
		}
		k.tell(s, r)
	}
	k.warnings.Replace(codeFailing, failing...)
}

// tell sets the warnings of a step, and logs what was put back.
func (k *Keeper) tell(s Step, r Result) {
	for _, code := range s.Codes {
		k.warnings.Replace(code, slices.DeleteFunc(slices.Clone(r.Warnings), func(w health.Warning) bool { return w.Code != code })...)
	}
	if !k.setUp {
		return
	}
	for _, what := range r.Changed {
		k.putBack[what]++
		k.log.Warn("Others changed the node, and it was put back", "step", s.Name, "what", what, "times", k.putBack[what])
		text := what + "; it is as it was again"
		if n := k.putBack[what]; n > 1 {
			text += fmt.Sprintf(" (%d times)", n)
		}
		k.warnings.Set(health.Warning{Code: codePutBack, Subject: what, Text: text, Next: "find out which program does it; this line goes when the agent restarts"})
	}
}

// List says what Undo would take back, and changes nothing.
func (k *Keeper) List(ctx context.Context) ([]string, error) {
	var out []string
	var errs []error
	for _, s := range k.steps {
		if s.List == nil {
			continue
		}
		list, err := s.List(ctx)
		out, errs = append(out, list...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// Undo takes all steps back, the last one first, and goes on after a failure.
func (k *Keeper) Undo(ctx context.Context) error {
	var errs []error
	for _, s := range slices.Backward(k.steps) {
		if s.Undo == nil {
			continue
		}
		if err := s.Undo(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", strings.ToLower(s.Name), err))
		}
	}
	return errors.Join(errs...)
}
