package k8s

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxBytes is the longest text that Split reads.
const MaxBytes = 4 << 20

// Document is one object of a text, not looked into yet.
type Document struct {
	APIVersion, Kind string // never empty
	Namespace, Name  string // as written; both may be empty
	File             string // as given to Split
	Line             int    // first line of the object, from 1

	node *yaml.Node
}

// Split cuts a text with any number of YAML or JSON documents into objects.
// Empty documents are skipped and lists (kind List, NetworkPolicyList ...) taken
// apart. With an error it returns the documents that could be read besides.
func Split(data []byte, file string) ([]Document, error) {
	if len(data) > MaxBytes {
		return nil, &FieldError{File: file, Problem: fmt.Sprintf(
			"the text has %d bytes, the most is %d; split it into several files", len(data), MaxBytes)}
	}
	var docs []Document
	var errs []error
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var root yaml.Node
		err := dec.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			line, what := YAMLError(err)
			errs = append(errs, &FieldError{File: file, Line: line,
				Problem: "not readable as YAML: " + what + "; look at indentation, brackets and quotes around this line"})
			break
		}
		if len(root.Content) == 0 || isNull(root.Content[0]) {
			continue
		}
		ds, err := newDocuments(root.Content[0], file, true)
		docs = append(docs, ds...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return docs, errors.Join(errs...)
}

// YAMLError takes a reason of the YAML decoder apart: the line, from 1 or 0 for
// none, and the text without it. Unlike its scanner, its parser counts from 0.
func YAMLError(err error) (line int, what string) {
	what = strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(what, "line "); ok {
		if number, text, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				line, what = n, text
			}
		}
	}
	if slices.Contains(parserErrors, what) {
		line++
	}
	return line, what
}

// parserErrors are the reasons that the parser gives.
var parserErrors = []string{
	"did not find expected <stream-start>", "did not find expected <document start>", "did not find expected node content",
	"did not find expected '-' indicator", "did not find expected key", "did not find expected ',' or ']'", "did not find expected ',' or '}'",
}

// newDocuments makes the documents of a node; lists inside a list are refused.
func newDocuments(n *yaml.Node, file string, lists bool) ([]Document, error) {
	d := Document{File: file, Line: n.Line, node: n}
	if n.Kind != yaml.MappingNode {
		return nil, &FieldError{File: file, Line: n.Line, Problem: "is " + describe(n) + ", not an object; start with apiVersion and kind"}
	}
	meta := child(n, "metadata")
	d.APIVersion, d.Kind = text(child(n, "apiVersion")), text(child(n, "kind"))
	d.Namespace, d.Name = text(child(meta, "namespace")), text(child(meta, "name"))
	if d.APIVersion == "" || d.Kind == "" {
		return nil, d.problem(n.Line, "", "has no apiVersion and kind; give both as text")
	}
	items := child(n, "items")
	if !strings.HasSuffix(d.Kind, "List") || items == nil {
		return []Document{d}, nil
	}
	if items.Kind != yaml.SequenceNode || !lists {
		return nil, d.problem(items.Line, "items", "is "+describe(items)+"; give a list of objects that are no lists themselves")
	}
	var docs []Document
	var errs []error
	for _, item := range items.Content {
		ds, err := newDocuments(item, file, false)
		docs = append(docs, ds...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	return docs, errors.Join(errs...)
}

func (d Document) problem(line int, path, problem string) *FieldError {
	return &FieldError{File: d.File, Line: line, Kind: d.Kind, Namespace: d.Namespace, Name: d.Name, Path: path, Problem: problem}
}

// Decode fills a pointer to a struct with JSON tags from the document. Unknown
// and doubled fields and values of the wrong type are errors, all of them
// reported at once. A status is skipped where the type has none.
func (d Document) Decode(into any) error {
	_, err := d.decode(into, false)
	return err
}

// DecodeLined is Decode, which also finds the line of a field by its path, or of
// the nearest field around it.
func (d Document) DecodeLined(into any) (lineOf func(path string) int, err error) {
	where, err := d.decode(into, false)
	return where.of, err
}

// child returns the value of a key of a mapping, or nil.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i].Kind == yaml.ScalarNode {
			return n.Content[i+1]
		}
	}
	return nil
}

// text returns the value of a scalar that is text, else "".
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return ""
	}
	return n.Value
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe says what a value is, for error texts.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!null":
			return "null"
		case "!!str":
			return fmt.Sprintf("the text %q", clip(n.Value))
		case "!!bool":
			return "the truth value " + clip(n.Value)
		case "!!int", "!!float":
			return "the number " + clip(n.Value)
		}
		return fmt.Sprintf("%q (%s)", clip(n.Value), n.ShortTag())
	}
	return "an alias"
}

// clip shortens a value for an error text.
func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:77], "") + "..."
	}
	return s
}
