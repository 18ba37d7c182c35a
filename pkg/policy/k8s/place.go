package k8s

// LineOf returns the line of a field of the object, "spec.ingress[0].from" for
// example, or of the nearest field around it that was written; 0 if the object
// did not come from a text.
func (o Object) LineOf(path string) int { return o.lines.of(path) }

// HasField reports whether the field was written in the text of the object.
func (o Object) HasField(path string) bool {
	_, ok := o.lines[path]
	return ok
}
