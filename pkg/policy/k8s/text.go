package k8s

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Text writes the document as YAML again, every field as it was read: a list
// that is there and empty stays so.
func (d Document) Text() ([]byte, error) {
	out, err := yaml.Marshal(d.node)
	if err != nil {
		return nil, fmt.Errorf("writing %s %s as YAML: %w", d.Kind, d.Name, err)
	}
	return out, nil
}
