package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirnet/weir/pkg/policy/k8s"
)

// Format returns the canonical form of a text of YAML documents. A text without
// a document is returned as it is.
func Format(text []byte) ([]byte, error) {
	if len(text) > k8s.MaxBytes {
		return nil, fmt.Errorf("has %d bytes, the most is %d; split it into several files", len(text), k8s.MaxBytes)
	}
	given := text
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	if bytes.HasPrefix(text, []byte("%")) || bytes.Contains(text, []byte("\n%")) {
		return nil, errors.New("the text has a YAML directive (a line that starts with %), which would be lost; take it out")
	}
	docs, err := read(text)
	if err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return given, nil
	}
	out, err := write(docs)
	if err != nil {
		return nil, err
	}
	// Where comments stand may settle only in a second pass.
	for range maxPasses {
		if docs, err = read(out); err != nil {
			return nil, fmt.Errorf("reading the formatted text: %w", err)
		}
		again, err := write(docs)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(out, again) {
			if err := same(text, out); err != nil {
				return nil, err
			}
			return out, nil
		}
		out = again
	}
	return nil, errors.New("the form of the text does not settle; move comments to lines of their own above fields")
}

// maxPasses is how often a text is formatted to see that it stays as it is.
const maxPasses = 4

// read returns the documents of a text, empty ones left out.
func read(text []byte) ([]*yaml.Node, error) {
	var out []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		n := new(yaml.Node)
		err := dec.Decode(n)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			line, what := k8s.YAMLError(err)
			return nil, fmt.Errorf("not readable as YAML: line %d: %s", line, what)
		}
		empty := len(n.Content) == 0 || n.Content[0].Kind == yaml.ScalarNode && n.Content[0].Tag == "!!null"
		if !empty {
			out = append(out, n)
		}
	}
}

func write(docs []*yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	for _, d := range docs {
		canonical(d, "", isPolicy(d))
		if err := enc.Encode(d); err != nil {
			return nil, fmt.Errorf("writing YAML: %w", err)
		}
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("writing YAML: %w", err)
	}
	return b.Bytes(), nil
}

// isPolicy reports whether the kind of a document, or of a list's, is one of
// those whose fields order knows.
func isPolicy(doc *yaml.Node) bool {
	root := doc.Content[0]
	for i := 0; i+1 < len(root.Content) && root.Kind == yaml.MappingNode; i += 2 {
		if root.Content[i].Value == "kind" {
			kind := root.Content[i+1].Value
			return kind == "List" || strings.HasSuffix(kind, "Policy") || strings.HasSuffix(kind, "PolicyList") || strings.HasSuffix(kind, "CIDRGroup")
		}
	}
	return false
}

// order is that of the fields of policies. Fields that are not in it follow as
// they stand.
var order = func() map[string]int {
	out := map[string]int{}
	for i, key := range strings.Fields(`apiVersion kind metadata spec specs items status
		name namespace labels annotations
		description action tier priority subject endpointSelector nodeSelector namespaceSelector podSelector policyTypes enableDefaultDeny
		ingress ingressDeny egress egressDeny
		from to fromEndpoints fromEntities fromNodes fromCIDR fromCIDRSet toEndpoints toEntities toNodes toServices toCIDR toCIDRSet
		ipBlock cidr cidrGroupRef cidrGroupSelector except ports toPorts icmps port endPort protocol
		matchLabels matchExpressions key operator values`) {
		out[key] = i
	}
	return out
}()

// topOrder is that of the fields of every object.
var topOrder = []string{"apiVersion", "kind", "metadata", "spec", "status", "name", "namespace", "labels", "annotations"}

// canonical brings a node and those below it into form. parent is the key that
// holds the node.
func canonical(n *yaml.Node, parent string, policy bool) {
	switch n.Kind {
	case yaml.DocumentNode:
		canonical(n.Content[0], "", policy)
	case yaml.MappingNode:
		if policy && len(n.Content) > 0 {
			n.Style &^= yaml.FlowStyle
		}
		sortFields(n, parent, policy)
		for i := 0; i+1 < len(n.Content); i += 2 {
			canonical(n.Content[i], parent, policy)
			canonical(n.Content[i+1], n.Content[i].Value, policy)
			raise(n.Content[i+1], n.Content[i])
		}
	case yaml.SequenceNode:
		if policy && n.Style&yaml.FlowStyle != 0 && !fitsFlow(n) {
			n.Style &^= yaml.FlowStyle
		}
		for _, item := range n.Content {
			canonical(item, parent, policy)
			raise(item, item)
		}
	case yaml.ScalarNode:
		if n.Tag == "!!str" && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 && plainWord(n.Value) {
			n.Style &^= yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle
		}
	}
}

// raise moves the comment behind a value that now has lines of its own to the
// line above it.
func raise(n, to *yaml.Node) {
	if n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode || n.LineComment == "" || n.Style&yaml.FlowStyle != 0 || len(n.Content) == 0 {
		return
	}
	if to.HeadComment != "" {
		to.HeadComment += "\n"
	}
	to.HeadComment, n.LineComment = to.HeadComment+n.LineComment, ""
}

// sortFields puts the fields of a mapping in order, unless its keys are the
// author's own words.
func sortFields(n *yaml.Node, parent string, policy bool) {
	if parent == "labels" || parent == "annotations" || parent == "matchLabels" {
		return
	}
	rank := func(i int) int {
		key := n.Content[i].Value
		if policy {
			if r, ok := order[key]; ok {
				return r
			}
			return len(order)
		}
		if parent != "" && parent != "metadata" {
			return 0
		}
		if r := slices.Index(topOrder, key); r >= 0 {
			return r
		}
		return len(topOrder)
	}
	var at []int
	for i := 0; i+1 < len(n.Content); i += 2 {
		at = append(at, i)
	}
	slices.SortStableFunc(at, func(a, b int) int { return rank(a) - rank(b) })
	out := make([]*yaml.Node, 0, len(n.Content))
	for _, i := range at {
		out = append(out, n.Content[i], n.Content[i+1])
	}
	n.Content = out
}

// maxFlow is the most characters of a list in one line.
const maxFlow = 80

// fitsFlow reports whether a list is short words without comments.
func fitsFlow(n *yaml.Node) bool {
	size := 0
	for _, item := range n.Content {
		if item.Kind != yaml.ScalarNode || item.HeadComment+item.LineComment+item.FootComment != "" {
			return false
		}
		size += len(item.Value) + 2
	}
	return size <= maxFlow
}

var word = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`)

// plainWord reports whether a text needs no quotes in any version of YAML.
func plainWord(s string) bool {
	if !word.MatchString(s) {
		return false
	}
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return false
	}
	return true
}

// same reports what the formatted text would have lost.
func same(before, after []byte) error {
	a, err := values(before)
	if err != nil {
		return err
	}
	b, err := values(after)
	if err != nil {
		return fmt.Errorf("reading the formatted text: %w", err)
	}
	if !reflect.DeepEqual(a, b) {
		return errors.New("the formatted text would say something else; write it in a simpler form of YAML")
	}
	lost := comments(before)
	for c, n := range comments(after) {
		lost[c] -= n
	}
	for c, n := range lost {
		if n > 0 {
			return fmt.Errorf("the comment %q would be lost; move it to a line of its own above a field", c)
		}
	}
	return nil
}

// values reads the documents of a text as plain values.
func values(text []byte) ([]any, error) {
	docs, err := read(text)
	if err != nil {
		return nil, err
	}
	var out []any
	for _, d := range docs {
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("not readable as YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		out = append(out, v)
	}
	return out, nil
}

// comments counts what may be a comment: from " #" or a leading "#" to the end of
// the line. The like in a text value stays the same too.
func comments(text []byte) map[string]int {
	out := map[string]int{}
	for line := range strings.SplitSeq(string(text), "\n") {
		line = " " + strings.TrimSpace(line)
		if i := strings.Index(line, " #"); i >= 0 {
			out[line[i+1:]]++
		}
	}
	return out
}
