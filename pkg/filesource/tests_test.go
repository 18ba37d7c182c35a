package filesource

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestBadTestsOfPoliciesAreProblems(t *testing.T) {
	const head = "apiVersion: weir.net/v1\nkind: PolicyTest\n"
	const good = head + "metadata: {name: t}\nexpect: [{from: a, to: b, port: 80, verdict: deny}]\n"
	for _, c := range []struct{ name, text, want string }{
		{"a good one", good, ""},
		{"beside a policy", denyAll + "---\n" + good, ""},
		{"no YAML", "a: [", ""},
		{"expect is no list", denyAll + "---\n" + head + "metadata: {name: t}\nexpect: 5\n", "expect"},
		{"no metadata", head + "expect: [{from: a, to: b, port: 80, verdict: deny}]\n", "metadata.name: is missing"},
		{"nothing is expected", head + "metadata: {name: t}\n", "expect: is empty"},
		{"an unknown field", head + "metadata: {name: t}\nexpekt: []\n", "did you mean expect?"},
	} {
		dir := t.TempDir()
		put(t, dir, "x.yaml", c.text)
		for _, path := range []string{dir, filepath.Join(dir, "x.yaml")} {
			problems, err := CheckTests([]string{path})
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if len(problems) != 0 {
					t.Errorf("%s: %v", c.name, problems)
				}
				continue
			}
			if len(problems) != 1 || problems[0].Line == 0 || problems[0].Warning || !strings.Contains(problems[0].String(), c.want) {
				t.Errorf("%s: %v", c.name, problems)
			}
		}
	}
}
