package labels

import (
	"fmt"
	"regexp"
	"strings"
)

// Filter says which labels take part in an identity. The rule that matches the
// longest part of the key, from its start, decides; on a tie a configured rule
// beats a built-in one, then an exclusion beats an inclusion. A label that no
// rule matches takes part unless the configuration has an inclusion. Labels of
// the reserved source, the pod's namespace and the cluster always take part.
type Filter struct {
	rules   []filterRule
	onlyInc bool // the configuration has an inclusion
}

type filterRule struct {
	source  string // empty: every source
	expr    *regexp.Regexp
	exclude bool
	builtIn bool
}

// The built-in rules, as regular expressions anchored at the start of the key.
var (
	defaultInclude = []string{
		`io\.kubernetes\.pod\.namespace`,
		`io\.cilium\.k8s\.namespace\.labels`,
		`app\.kubernetes\.io`,
		`io\.cilium\.k8s\.policy\.cluster`,
		`io\.cilium\.k8s\.policy\.serviceaccount`,
	}
	defaultExclude = []string{
		`io\.kubernetes`,
		`kubernetes\.io`,
		`.*beta\.kubernetes\.io`,
		`k8s\.io`,
		`pod-template-generation`,
		`pod-template-hash`,
		`controller-revision-hash`,
		`controller-uid`,
		`annotation.*`,
		`etcd_node`,
		`apps\.kubernetes\.io/pod-index`,
		`batch\.kubernetes\.io/job-completion-index`,
		`batch\.kubernetes\.io/controller-uid`,
		`topology\.kubernetes\.io`,
	}
)

// DefaultFilter returns the built-in rules alone.
func DefaultFilter() *Filter {
	f := &Filter{}
	for _, e := range defaultInclude {
		f.rules = append(f.rules, filterRule{expr: anchored(e), builtIn: true})
	}
	for _, e := range defaultExclude {
		f.rules = append(f.rules, filterRule{expr: anchored(e), builtIn: true, exclude: true})
	}
	return f
}

func anchored(expr string) *regexp.Regexp {
	re := regexp.MustCompile("^(?:" + expr + ")")
	re.Longest()
	return re
}

// ParseFilter adds rules to the built-in ones. Each is [!][source:][!]regex:
// the expression (RE2 syntax) is anchored at the start of the key, "!" excludes.
// Once one rule includes, labels that no rule matches are left out. An empty
// list is DefaultFilter.
func ParseFilter(rules []string) (*Filter, error) {
	f := DefaultFilter()
	for _, text := range rules {
		r, err := parseFilterRule(text)
		if err != nil {
			return nil, fmt.Errorf("label filter rule %q: %w; write [source:][!]prefix, the prefix as a regular expression", text, err)
		}
		f.rules = append(f.rules, r)
		f.onlyInc = f.onlyInc || !r.exclude
	}
	return f, nil
}

func parseFilterRule(text string) (filterRule, error) {
	var r filterRule
	rest, not := strings.CutPrefix(text, "!")
	r.exclude = not
	if i := strings.IndexByte(rest, ':'); i >= 0 && isWord(rest[:i]) {
		if i == 0 {
			return r, fmt.Errorf("the source before ':' is empty")
		}
		r.source, rest = rest[:i], rest[i+1:]
	}
	if rest, not = strings.CutPrefix(rest, "!"); not {
		if r.exclude {
			return r, fmt.Errorf("two '!'")
		}
		r.exclude = true
	}
	if r.source == SourceAny {
		r.source = ""
	}
	if r.source == SourceReserved {
		return r, fmt.Errorf("labels of the source reserved always take part in an identity")
	}
	if rest == "" {
		return r, fmt.Errorf("nothing to match")
	}
	re, err := regexp.Compile("^(?:" + rest + ")")
	if err != nil {
		return r, err
	}
	re.Longest()
	r.expr = re
	return r, nil
}

// isWord reports whether s can be a source, so that the ':' of "(?:a|b)" is not
// taken for the end of one.
func isWord(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}

// Split divides a set: identity takes part in the identity, information does
// not. A nil Filter lets every label take part.
func (f *Filter) Split(a LabelArray) (identity, information LabelArray) {
	if f == nil {
		return a, nil
	}
	for _, l := range a {
		if f.relevant(l) {
			identity = append(identity, l)
		} else {
			information = append(information, l)
		}
	}
	return identity, information
}

// Relevant reports whether a label takes part in identities, so that policies
// can select by it. A nil Filter lets every label take part.
func (f *Filter) Relevant(l Label) bool { return f == nil || f.relevant(l) }

func (f *Filter) relevant(l Label) bool {
	if l.Source == SourceReserved || l.Source == SourceK8s && (l.Key == KeyPodNamespace || l.Key == KeyCluster) {
		return true
	}
	best, found := 0, filterRule{}
	for _, r := range f.rules {
		if r.source != "" && r.source != l.Source {
			continue
		}
		loc := r.expr.FindStringIndex(l.Key)
		if loc == nil {
			continue
		}
		if found.expr == nil || loc[1] > best || loc[1] == best && r.beats(found) {
			best, found = loc[1], r
		}
	}
	if found.expr == nil {
		return !f.onlyInc
	}
	return !found.exclude
}

// beats breaks a tie of length.
func (r filterRule) beats(o filterRule) bool {
	if r.builtIn != o.builtIn {
		return o.builtIn
	}
	return r.exclude && !o.exclude
}
