package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	v1 "github.com/weirnet/weir/api/v1"
)

// schema is what of the spec's schema language requests use.
type schema struct {
	Ref                  string             `yaml:"$ref"`
	Type                 string             `yaml:"type"`
	Required             []string           `yaml:"required"`
	Properties           map[string]*schema `yaml:"properties"`
	AdditionalProperties yaml.Node          `yaml:"additionalProperties"` // a schema; anything else: none are allowed
	Items                *schema            `yaml:"items"`
	Pattern              string             `yaml:"pattern"`
	Minimum              *int64             `yaml:"minimum"`
	Maximum              *int64             `yaml:"maximum"`
	MinLength            int                `yaml:"minLength"` // characters
	MaxLength            *int               `yaml:"maxLength"`
	MaxItems             *int               `yaml:"maxItems"`
	MinProperties        int                `yaml:"minProperties"`
	MaxProperties        *int               `yaml:"maxProperties"`
	Enum                 []string           `yaml:"enum"`

	values  *schema // of AdditionalProperties
	pattern *regexp.Regexp
}

// bodies are the schemas of the JSON bodies that the spec has, by the pattern under
// which the operation is served.
var bodies = sync.OnceValues(func() (map[string]*schema, error) {
	var spec struct {
		Paths      map[string]map[string]yaml.Node `yaml:"paths"`
		Components struct {
			Schemas map[string]yaml.Node `yaml:"schemas"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(v1.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	out := map[string]*schema{}
	for path, item := range spec.Paths {
		for method, node := range item {
			var op struct {
				RequestBody struct {
					Content map[string]struct {
						Schema schema `yaml:"schema"`
					} `yaml:"content"`
				} `yaml:"requestBody"`
			}
			if node.Kind != yaml.MappingNode {
				continue // the path's parameters
			}
			if err := node.Decode(&op); err != nil {
				return nil, fmt.Errorf("read the spec: %s %s: %w", method, path, err)
			}
			body, ok := op.RequestBody.Content["application/json"]
			if !ok {
				continue
			}
			s := &body.Schema
			if err := s.resolve(spec.Components.Schemas); err != nil {
				return nil, fmt.Errorf("read the spec: %s %s: %w", method, path, err)
			}
			out[strings.ToUpper(method)+" "+v1.Base+path] = s
		}
	}
	return out, nil
})

// resolve puts what references name in their place.
func (s *schema) resolve(named map[string]yaml.Node) error {
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
		node, ok := named[name]
		if !ok {
			return fmt.Errorf("%s is not there", s.Ref)
		}
		if *s = (schema{}); node.Decode(s) != nil {
			return fmt.Errorf("schema %s has a form that is not known", name)
		}
	}
	parts := []*schema{}
	for _, p := range s.Properties {
		parts = append(parts, p)
	}
	if s.Items != nil {
		parts = append(parts, s.Items)
	}
	if s.AdditionalProperties.Kind == yaml.MappingNode {
		s.values = &schema{}
		if err := s.AdditionalProperties.Decode(s.values); err != nil {
			return err
		}
		parts = append(parts, s.values)
	}
	var err error
	if s.Pattern != "" {
		s.pattern, err = regexp.Compile(s.Pattern)
	}
	for _, p := range parts {
		err = errors.Join(err, p.resolve(named))
	}
	return err
}

// checkBody holds the JSON body of a request against the spec: every field is one
// that the schema has, required ones are there, limits are kept, and nothing
// follows. Handlers see a body only after it.
func checkBody(pattern string, body []byte) error {
	all, err := bodies()
	if err != nil {
		return err
	}
	s := all[pattern]
	if s == nil {
		return nil
	}
	c := checker{json.NewDecoder(bytes.NewReader(body))}
	c.dec.UseNumber()
	if err = c.value(s, ""); err == nil {
		if _, more := c.dec.Token(); more != io.EOF {
			err = errors.New("there is text after the object")
		}
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the JSON body is missing or ends too early")
	case err == nil:
		return nil
	}
	return v1.Errorf(v1.CodeInvalid, "compare the body with api/v1/openapi.yaml and send the request again", "%s: %w", pattern, err)
}

// checker walks over a body along its schema, so that its depth is the schema's.
type checker struct{ dec *json.Decoder }

func (c checker) value(s *schema, path string) error {
	tok, err := c.dec.Token()
	if err != nil {
		return err
	}
	switch v := tok.(type) {
	case json.Delim:
		switch {
		case v == '{' && s.Type == "object":
			return c.object(s, path)
		case v == '[' && s.Type == "array":
			return c.array(s, path)
		}
	case string:
		if s.Type == "string" {
			return s.text(v, path)
		}
	case json.Number:
		if s.Type == "integer" {
			return s.number(v, path)
		}
	case bool:
		if s.Type == "boolean" {
			return nil
		}
	}
	return wrong(path, "is not of the type %s", s.Type)
}

func (c checker) object(s *schema, path string) error {
	seen := map[string]bool{}
	for c.dec.More() {
		tok, err := c.dec.Token()
		if err != nil {
			return err
		}
		name, _ := tok.(string) // the decoder takes no other key
		at := strings.TrimPrefix(path+"."+name, ".")
		part := s.Properties[name]
		if part == nil {
			part = s.values
		}
		switch {
		case part == nil:
			return wrong(at, "does not exist")
		case seen[name]:
			return wrong(at, "is given twice")
		}
		seen[name] = true
		if s.MaxProperties != nil && len(seen) > *s.MaxProperties {
			return wrong(path, "has more than %d members", *s.MaxProperties)
		}
		if err := c.value(part, at); err != nil {
			return err
		}
	}
	if _, err := c.dec.Token(); err != nil {
		return err
	}
	if len(seen) < s.MinProperties {
		return wrong(path, "has %d fields, and of %s at least %d: one is missing", len(seen), strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", "), s.MinProperties)
	}
	for _, name := range s.Required {
		if !seen[name] {
			return wrong(strings.TrimPrefix(path+"."+name, "."), "is missing")
		}
	}
	return nil
}

func (c checker) array(s *schema, path string) error {
	for i := 0; c.dec.More(); i++ {
		if s.MaxItems != nil && i == *s.MaxItems {
			return wrong(path, "has more than %d items", *s.MaxItems)
		}
		if err := c.value(s.Items, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	_, err := c.dec.Token()
	return err
}

func (s *schema) text(v, path string) error {
	n := utf8.RuneCountInString(v)
	switch {
	case n < s.MinLength:
		return wrong(path, "has %d characters, less than %d", n, s.MinLength)
	case s.MaxLength != nil && n > *s.MaxLength:
		return wrong(path, "has %d characters, more than %d", n, *s.MaxLength)
	case s.pattern != nil && !s.pattern.MatchString(v):
		return wrong(path, "%.80q does not fit %s", v, s.Pattern)
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, v):
		return wrong(path, "%.80q is not known; give one of %s", v, strings.Join(s.Enum, ", "))
	}
	return nil
}

func (s *schema) number(v json.Number, path string) error {
	n, err := strconv.ParseInt(v.String(), 10, 64)
	switch {
	case err != nil:
		return wrong(path, "%.40s is no integer of 64 bits", v)
	case s.Minimum != nil && n < *s.Minimum:
		return wrong(path, "%d is less than %d", n, *s.Minimum)
	case s.Maximum != nil && n > *s.Maximum:
		return wrong(path, "%d is more than %d", n, *s.Maximum)
	}
	return nil
}

// wrong names the field; a name that is no plain text comes quoted and cut.
func wrong(path, format string, args ...any) error {
	switch {
	case path == "":
		return fmt.Errorf("the body "+format, args...)
	case len(path) > 80 || strconv.Quote(path) != `"`+path+`"`:
		path = fmt.Sprintf("%.80q", path)
	}
	return fmt.Errorf("field %s: "+format, slices.Concat([]any{path}, args)...)
}
