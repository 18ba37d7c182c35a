package repository

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/policy/types"
)

// FileName is the rule table's name inside Config.StateDir.
const FileName = "rules.json"

const rulesVersion = 1

// maxRules is how many numbers are remembered besides those of answers; the oldest
// are forgotten first, but never given to another rule.
const maxRules = 1 << 14

// ruleTable gives every rule a number. A rule is the same while its policy,
// place in it, file, line and log value are.
type ruleTable struct {
	path string // empty: not kept

	mu     sync.Mutex
	next   types.RuleID
	byText map[string]types.RuleID
	refs   map[types.RuleID]types.RuleRef
	full   int  // more numbers than that are a reason to prune
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

// openRules reads the table of earlier processes. Without it, missing or damaged,
// numbers begin above the greatest one that the kernel holds and that can still be
// seen in the file: no number may be that of a second rule while the kernel has the
// first. Numbers of before then have no names.
func openRules(dir string, greatest func() types.RuleID) (*ruleTable, *atomicfile.Damage) {
	t := newRuleTable()
	if dir == "" {
		return t, nil
	}
	path := filepath.Join(dir, FileName)
	found := false
	var text []byte
	damage := atomicfile.Load(path, func(data []byte) error {
		text = data
		if err := t.read(data); err != nil {
			t = newRuleTable() // some of it was taken in
			return err
		}
		found = true
		return nil
	})
	t.path = path
	if !found && greatest != nil {
		t.next = max(t.next, greatest()+1)
	}
	for _, m := range numbersInDamage.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseUint(string(m[1]), 10, 32)
		if err == nil && damage != nil && n < math.MaxUint32/2 {
			t.next = max(t.next, types.RuleID(n)+1)
		}
	}
	return t, damage
}

// numbersInDamage are the numbers that a damaged file still shows.
var numbersInDamage = regexp.MustCompile(`"(?:id|next)"\s*:\s*(\d{1,10})`)

func newRuleTable() *ruleTable {
	return &ruleTable{next: 1, full: 2 * maxRules, byText: map[string]types.RuleID{}, refs: map[types.RuleID]types.RuleRef{}}
}

func (t *ruleTable) read(text []byte) error {
	var f rulesFile
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Version != rulesVersion {
		return fmt.Errorf("version %d, this agent knows %d; start the release that wrote it", f.Version, rulesVersion)
	}
	if t.next = max(f.Next, 1); t.next == math.MaxUint32 {
		return fmt.Errorf("all %d numbers are given", t.next)
	}
	for _, r := range f.Rules {
		key := ruleText(r.Ref)
		if _, twice := t.refs[r.ID]; twice || r.ID == 0 || t.byText[key] != 0 {
			return fmt.Errorf("number %d is 0, or it or its rule is there twice", r.ID)
		}
		if r.ID == math.MaxUint32 {
			return fmt.Errorf("number %d is the last one, and leaves none for new rules", r.ID)
		}
		t.byText[key], t.refs[r.ID] = r.ID, r.Ref
		t.next = max(t.next, r.ID+1)
	}
	return nil
}

// ruleText tells rules apart. Another log value makes another rule, so that an
// event shows the value that was in force.
func ruleText(r types.RuleRef) string {
	text := fmt.Sprintf("%d %d %s", r.Kind, r.Line, r)
	if r.Log != "" {
		text += fmt.Sprintf(" %q", r.Log)
	}
	return text
}

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
	return id
}

// ref returns the rule that a number stands for.
func (t *ruleTable) ref(id types.RuleID) (types.RuleRef, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.refs[id]
	return r, ok
}

// crowded reports whether it is time to prune.
func (t *ruleTable) crowded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.refs) > t.full
}

// prune forgets all rules but those in use and the newest of the others.
func (t *ruleTable) prune(used map[types.RuleID]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var idle []types.RuleID
	for id := range t.refs {
		if !used[id] {
			idle = append(idle, id)
		}
	}
	slices.Sort(idle)
	for _, id := range idle[:max(0, len(idle)-maxRules)] {
		delete(t.byText, ruleText(t.refs[id]))
		delete(t.refs, id)
	}
	t.full = len(t.refs) + maxRules
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
	for _, id := range slices.Sorted(maps.Keys(t.refs)) {
		f.Rules = append(f.Rules, savedRule{id, t.refs[id]})
	}
	text, err := json.Marshal(f)
	if err == nil {
		err = atomicfile.WriteSync(t.path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keeping rule numbers: %w; make room on the state directory's disk, the agent tries again", err)
	}
	t.dirty = false
	return nil
}

// Rule returns the rule that a number stands for, also one that is no longer in force.
func (r *Repository) Rule(id types.RuleID) (types.RuleRef, bool) { return r.rules.ref(id) }
