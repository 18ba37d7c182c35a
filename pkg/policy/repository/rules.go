package repository

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/weirnet/weir/pkg/policy/types"
)

// FileName is the rule table's name inside Config.StateDir.
const FileName = "rules.json"

const rulesVersion = 1

// maxRules is how many numbers are remembered; the oldest are forgotten first,
// but never given to another rule.
const maxRules = 1 << 17

// ruleTable gives every rule a number. A rule is the same while its policy,
// place in it, file and line are.
type ruleTable struct {
	path string // empty: not kept

	mu     sync.Mutex
	next   types.RuleID
	byText map[string]types.RuleID
	refs   map[types.RuleID]types.RuleRef
	oldest types.RuleID
	dirty  bool // numbers were given that the file does not hold
}

// rulesFile is the form of rules.json.
type rulesFile struct {
	Version int          `json:"version"`
	Next    types.RuleID `json:"next"`
	Rules   []savedRule  `json:"rules"`
}

type savedRule struct {
	ID  types.RuleID  `json:"id"`
	Ref types.RuleRef `json:"ref"`
}

// openRules reads the table of earlier processes. A damaged file is an error: to
// start without it could give a number to a second rule while the kernel still
// holds the first.
func openRules(dir string) (*ruleTable, error) {
	t := &ruleTable{next: 1, oldest: 1, byText: map[string]types.RuleID{}, refs: map[types.RuleID]types.RuleRef{}}
	if dir == "" {
		return t, nil
	}
	t.path = filepath.Join(dir, FileName)
	text, err := os.ReadFile(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the rule numbers: %w", err)
	}
	var f rulesFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("reading the rule numbers of %s: %w; remove the agent's pins and this file together", t.path, err)
	}
	if f.Version != rulesVersion {
		return nil, fmt.Errorf("reading the rule numbers of %s: version %d, this agent knows %d; start the release that wrote it, or remove the agent's pins and this file together", t.path, f.Version, rulesVersion)
	}
	t.next = max(f.Next, 1)
	for _, r := range f.Rules {
		t.byText[ruleText(r.Ref)], t.refs[r.ID] = r.ID, r.Ref
		t.next = max(t.next, r.ID+1)
	}
	return t, nil
}

// ruleText tells rules apart.
func ruleText(r types.RuleRef) string { return fmt.Sprintf("%d %d %s", r.Kind, r.Line, r) }

// number returns the rule's number, a new one for a rule not seen before.
func (t *ruleTable) number(r types.RuleRef) types.RuleID {
	key := ruleText(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.byText[key]; ok {
		return id
	}
	id := t.next
	t.next++
	t.byText[key], t.refs[id], t.dirty = id, r, true
	for ; len(t.refs) > maxRules; t.oldest++ {
		if old, ok := t.refs[t.oldest]; ok {
			delete(t.refs, t.oldest)
			delete(t.byText, ruleText(old))
		}
	}
	return id
}

// ref returns the rule that a number stands for.
func (t *ruleTable) ref(id types.RuleID) (types.RuleRef, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.refs[id]
	return r, ok
}

// flush writes the table if numbers were given since. It is called before the
// numbers leave the process.
func (t *ruleTable) flush() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dirty || t.path == "" {
		return nil
	}
	f := rulesFile{Version: rulesVersion, Next: t.next, Rules: make([]savedRule, 0, len(t.refs))}
	for id, r := range t.refs {
		f.Rules = append(f.Rules, savedRule{id, r})
	}
	text, err := json.Marshal(f)
	if err == nil {
		err = os.WriteFile(t.path+".tmp", text, 0o600)
	}
	if err == nil {
		err = os.Rename(t.path+".tmp", t.path)
	}
	if err != nil {
		return fmt.Errorf("keeping rule numbers: %w", err)
	}
	t.dirty = false
	return nil
}

// Rule returns the rule that a number stands for, also one that is no longer in force.
func (r *Repository) Rule(id types.RuleID) (types.RuleRef, bool) { return r.rules.ref(id) }
