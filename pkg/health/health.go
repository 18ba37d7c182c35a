package health

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Breaks says what a warning breaks.
type Breaks string

// What a warning can break, from the mildest.
const (
	BreaksNothing     Breaks = "nothing"
	BreaksPods        Breaks = "pods"
	BreaksEnforcement Breaks = "enforcement"
)

// Warning is one thing that is wrong.
type Warning struct {
	Code    string    // of the kind of warning, stable: "source-held", "set-aside"
	Subject string    // what it is about, where one code has several: a path, an endpoint
	Text    string    // what is wrong, one sentence
	Breaks  Breaks    // without one: BreaksNothing
	Failing bool      // the agent cannot do its work until it is mended
	Next    string    // the next command or thing to try
	Since   time.Time // when it began; zero: now
}

// key is what makes two warnings the same one.
type key struct{ code, subject string }

// Registry holds the warnings that stand. It may be used by many goroutines.
type Registry struct {
	now func() time.Time

	mu    sync.Mutex
	stand map[key]Warning
}

// New returns an empty registry.
func New() *Registry { return &Registry{now: time.Now, stand: map[key]Warning{}} }

// Set puts a warning, or changes the one of the same code and subject, which
// keeps its Since.
func (r *Registry) Set(w Warning) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(w)
}

func (r *Registry) set(w Warning) {
	k := key{w.Code, w.Subject}
	if old, stands := r.stand[k]; stands {
		w.Since = old.Since
	} else if w.Since.IsZero() {
		w.Since = r.now()
	}
	w.Breaks = cmp.Or(w.Breaks, BreaksNothing)
	r.stand[k] = w
}

// Clear takes a warning away; one that does not stand is no error.
func (r *Registry) Clear(code, subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.stand, key{code, subject})
}

// Replace makes the warnings of a code these: others of it go. Those that stood
// keep their Since.
func (r *Registry) Replace(code string, ws ...Warning) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stays := map[key]bool{}
	for _, w := range ws {
		w.Code = code
		stays[key{code, w.Subject}] = true
		r.set(w)
	}
	maps.DeleteFunc(r.stand, func(k key, _ Warning) bool { return k.code == code && !stays[k] })
}

// List returns what stands: failing first, then by what it breaks, the worst
// first, then by code and subject.
func (r *Registry) List() []Warning {
	r.mu.Lock()
	out := slices.Collect(maps.Values(r.stand))
	r.mu.Unlock()
	slices.SortFunc(out, func(a, b Warning) int {
		return cmp.Or(cmp.Compare(b.weight(), a.weight()), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Subject, b.Subject))
	})
	return out
}

func (w Warning) weight() int {
	n := slices.Index([]Breaks{BreaksNothing, BreaksPods, BreaksEnforcement}, w.Breaks)
	if w.Failing {
		n += 10
	}
	return n
}
