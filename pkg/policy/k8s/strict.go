package k8s

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// Limits that stop a hostile text: values of one object and their bytes, aliases
// followed included, and how deep they nest.
const (
	maxValues  = 200_000
	maxText    = 2 * MaxBytes
	maxNesting = 64
)

// lines knows the line of every field that an object was read from, by path.
type lines map[string]int

// of returns the line of the path, or of the nearest field around it.
func (l lines) of(path string) int {
	for path != "" {
		if n, ok := l[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return l[""]
}

// checker walks a document beside the Go type that it is to fill. It makes the
// JSON form of it: the text's own types decide, so that an unquoted yes never
// turns into "true" on the way.
type checker struct {
	doc       Document
	lines     lines
	errs      []error
	left      int  // values that may still be visited
	text      int  // bytes that they may still have
	nullError bool // null is refused below spec
}

// decode is Decode, which also returns where each field was.
func (d Document) decode(into any, nullError bool) (lines, error) {
	c := &checker{doc: d, lines: lines{"": d.Line}, left: maxValues, text: maxText, nullError: nullError}
	t := reflect.TypeOf(into)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("decode %s: the target is %v, not a pointer to a struct", d.Kind, t)
	}
	tree := c.value(d.node, t.Elem(), "", 0)
	if c.left < 0 || c.text < 0 {
		c.fail(d.node, "", "has more than %d values or %d bytes in them, aliases followed; split it", maxValues, maxText)
	}
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...)
	}
	text, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return nil, d.problem(d.Line, "", "cannot be read: "+err.Error())
	}
	return c.lines, nil
}

func (c *checker) fail(n *yaml.Node, path, format string, args ...any) {
	if len(c.errs) < 20 {
		c.errs = append(c.errs, c.doc.problem(n.Line, path, fmt.Sprintf(format, args...)))
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// value returns the JSON form of a node for a field of type t; nil t takes
// anything.
func (c *checker) value(n *yaml.Node, t reflect.Type, path string, depth int) any {
	c.left--
	c.text -= len(n.Value)
	if c.left < 0 || c.text < 0 {
		return nil
	}
	if depth > maxNesting {
		c.fail(n, clip(path), "nests deeper than %d; make it flatter", maxNesting)
		c.left = 0
		return nil
	}
	if n.Kind == yaml.AliasNode {
		return c.value(n.Alias, t, path, depth+1)
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && (t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(unmarshaler)) {
		t = nil
	}
	if isNull(n) {
		if c.nullError && strings.HasPrefix(path, "spec") {
			c.fail(n, path, "is null; leave the field out, or write {} or []: they mean different things")
		}
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		return c.mapping(n, t, path, depth)
	case yaml.SequenceNode:
		return c.sequence(n, t, path, depth)
	case yaml.ScalarNode:
		return c.scalar(n, t, path)
	}
	return nil
}

func (c *checker) mapping(n *yaml.Node, t reflect.Type, path string, depth int) any {
	if t != nil && t.Kind() != reflect.Struct && t.Kind() != reflect.Map {
		c.fail(n, path, "is a mapping; give %s", want(t))
		return nil
	}
	out := make(map[string]any, len(n.Content)/2)
	seen := make(map[string]int, len(n.Content)/2)
	var known map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Struct {
		known = fields(t)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if c.text -= len(key.Value); c.text < 0 {
			return nil
		}
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			c.fail(key, path, "has a key that is no plain text; write every field out")
			continue
		}
		field := join(path, key.Value)
		if first, ok := seen[key.Value]; ok {
			c.fail(key, field, "is given twice, first in line %d; keep one", first)
			continue
		}
		seen[key.Value] = key.Line
		ft := t
		switch {
		case t == nil:
		case t.Kind() == reflect.Map:
			ft = t.Elem()
		default:
			var ok bool
			if ft, ok = known[key.Value]; !ok {
				c.unknown(key, t, known, path, field)
				continue
			}
		}
		if t == nil { // of any form: its own line is near enough
			field = path
		} else {
			c.lines[field] = key.Line
		}
		out[key.Value] = c.value(val, ft, field, depth+1)
	}
	return out
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	if strings.ContainsAny(key, ".:/[]") {
		return path + "[" + clip(key) + "]"
	}
	return path + "." + clip(key)
}

// unknown refuses a field that the type does not have.
func (c *checker) unknown(key *yaml.Node, t reflect.Type, fields map[string]reflect.Type, path, field string) {
	if path == "" && key.Value == "status" {
		return
	}
	if u, ok := reflect.Zero(t).Interface().(interface{ Unsupported() map[string]string }); ok {
		if next, ok := u.Unsupported()[key.Value]; ok {
			c.fail(key, field, "not supported yet; %s", next)
			return
		}
	}
	known := slices.Sorted(maps.Keys(fields))
	if near := nearest(key.Value, known); near != "" {
		c.fail(key, field, "is not a field that exists here; did you mean %s?", near)
		return
	}
	if len(known) > 12 {
		c.fail(key, field, "is not a field that exists here; take it out")
		return
	}
	c.fail(key, field, "is not a field that exists here; there are %s", strings.Join(known, ", "))
}

func (c *checker) sequence(n *yaml.Node, t reflect.Type, path string, depth int) any {
	if t != nil && t.Kind() != reflect.Slice {
		c.fail(n, path, "is a list; give %s", want(t))
		return nil
	}
	var et reflect.Type
	if t != nil {
		et = t.Elem()
	}
	out := make([]any, 0, len(n.Content))
	for i, item := range n.Content {
		p := path
		if t != nil {
			p = fmt.Sprintf("%s[%d]", path, i)
			c.lines[p] = item.Line
		}
		if isNull(item) {
			c.fail(item, p, "is null; take the element out, or write what it should be")
			continue
		}
		out = append(out, c.value(item, et, p, depth+1))
	}
	return out
}

// oldBooleans are words that readers of YAML 1.1 take for a truth value.
var oldBooleans = []string{"yes", "no", "on", "off"}

func (c *checker) scalar(n *yaml.Node, t reflect.Type, path string) any {
	if t == nil {
		var v any
		if err := n.Decode(&v); err != nil {
			c.fail(n, path, "is %s, which cannot be read", describe(n))
			return nil
		}
		if f, ok := v.(float64); ok && (f != f || f-f != 0) { // JSON has no such numbers
			return n.Value
		}
		return v
	}
	tag := n.ShortTag()
	switch t.Kind() {
	case reflect.String:
		plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
		if tag == "!!str" && !(plain && slices.Contains(oldBooleans, strings.ToLower(n.Value))) {
			return n.Value
		}
		c.fail(n, path, "is not text for every reader of YAML; write %q in quotes", clip(n.Value))
		return nil
	case reflect.Bool:
		var v bool
		if tag == "!!bool" && n.Decode(&v) == nil {
			return v
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		var v int64
		if tag == "!!int" && n.Decode(&v) == nil && !reflect.Zero(t).OverflowInt(v) {
			return v
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		var v uint64
		if tag == "!!int" && n.Decode(&v) == nil && !reflect.Zero(t).OverflowUint(v) {
			return v
		}
	case reflect.Float32, reflect.Float64:
		var v float64
		if (tag == "!!int" || tag == "!!float") && n.Decode(&v) == nil && v-v == 0 {
			return v
		}
	}
	c.fail(n, path, "is %s; give %s", describe(n), want(t))
	return nil
}

// want names a type as a person would.
func want(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a mapping"
	case reflect.Int32:
		return "a whole number of 32 bits"
	}
	return "a whole number"
}

// knownFields keeps what fieldsOf found out: every object asks for the same few types.
var knownFields sync.Map

// fields returns the JSON fields of a struct, those of inlined structs included;
// not to be changed.
func fields(t reflect.Type) map[string]reflect.Type {
	if known, ok := knownFields.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	out := fieldsOf(t)
	knownFields.Store(t, out)
	return out
}

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous:
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			maps.Copy(out, fields(ft))
		case name == "":
			out[f.Name] = f.Type
		default:
			out[name] = f.Type
		}
	}
	return out
}
