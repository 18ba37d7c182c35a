package k8s

import (
	"fmt"
	"strings"
)

// FieldError says which field of which object was refused, why, and what to do.
type FieldError struct {
	File            string // empty where the object came without a file
	Line            int    // in File, from 1; 0 unknown
	Kind            string // empty where the text is no object
	Namespace, Name string
	Path            string // "spec.egress[0].toFQDNs"; empty: the whole object
	Problem         string // the value, what is wrong with it and what to do
}

// Error prints "file:line: kind namespace/name: path: problem", leaving out
// what is not known.
func (e *FieldError) Error() string {
	var parts []string
	if e.File != "" && e.Line > 0 {
		parts = append(parts, fmt.Sprintf("%s:%d", e.File, e.Line))
	} else if e.File != "" {
		parts = append(parts, e.File)
	}
	if e.Kind != "" {
		name := e.Name
		if e.Namespace != "" {
			name = e.Namespace + "/" + name
		}
		parts = append(parts, strings.TrimSpace(e.Kind+" "+name))
	}
	if e.Path != "" {
		parts = append(parts, e.Path)
	}
	return strings.Join(append(parts, e.Problem), ": ")
}
