package repository

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/policy/types"
)

// FuzzRulesFile reads rules.json. What is taken is written and read again the
// same, a rule of it has its number, and a rule that is not in it a new one.
func FuzzRulesFile(f *testing.F) {
	const rule = `{"Kind":0,"Resource":{"Kind":"NetworkPolicy","Name":"n"},"Section":"ingress"}`
	for _, s := range []string{
		`{"version":1,"next":9,"rules":[{"id":3,"ref":` + rule + `},{"id":7,"ref":{"Kind":1,"Isolated":[{"Kind":"NetworkPolicy"}]}}]}`,
		`{"version":1,"next":0,"rules":[{"id":4294967295,"ref":` + rule + `}]}`, `{"version":1,"next":4294967295,"rules":null}`,
		`{"version":2}`, `{"version":1,"rules":[{"id":1,"ref":{"Kind":6}},{"id":2,"ref":{"Kind":6,"Index":4}}]}`, `null`, `[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, FileName)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		table, damage := openRules(dir, nil)
		if damage != nil && !strings.Contains(damage.Error(), path) {
			t.Fatalf("%v does not name the file", damage)
		}
		if len(table.refs) != len(table.byText) || len(table.refs) > len(text) {
			t.Fatalf("%d rules, %d texts", len(table.refs), len(table.byText))
		}
		before := maps.Clone(table.refs)
		for id, ref := range before {
			if id == 0 || id >= table.next || table.number(ref) != id {
				t.Fatalf("rule %+v had number %d, and then %d; next is %d", ref, id, table.number(ref), table.next)
			}
		}
		fresh := types.RuleRef{Resource: types.Resource{Kind: "nowhere"}, Section: string(text)}
		id := table.number(fresh)
		if _, used := before[id]; used || id == 0 {
			t.Fatalf("a new rule got number %d", id)
		}
		if err := table.flush(); err != nil {
			t.Fatal(err)
		}
		again, damage := openRules(dir, nil)
		if damage != nil {
			t.Fatal(damage)
		}
		delete(again.refs, id) // its section may not be text, which JSON mends
		if !reflect.DeepEqual(again.refs, before) || again.next != table.next {
			t.Fatalf("%+v, next %d\nbecame\n%+v, next %d", before, table.next, again.refs, again.next)
		}
	})
}
