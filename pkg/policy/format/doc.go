// Package format writes policy YAML in one canonical form.
//
// # What
//
// Format indents by two spaces, puts the fields of policies in the order in which
// people read them, writes their mappings in block form, takes quotes away that
// nothing needs, and keeps every comment and the order of lists and labels. Of
// other objects only the fields on top are ordered, and what stands in one line
// stays there.
//
// # Neighbours
//
// "weir policy fmt" and "weir policy suggest" call it; policy/k8s reads the result.
//
// # Rules
//
// Pure. The result says what the text said: it is read again and compared, and a
// text of which a comment or a value would be lost is refused. Formatting twice
// changes nothing.
//
// # Try it
//
//	go test ./pkg/policy/format
package format
