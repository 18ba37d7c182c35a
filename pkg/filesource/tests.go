package filesource

import (
	"fmt"

	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/testfile"
)

// CheckTests reads the tests of policies in folders or files and tells what is
// wrong with them. Other objects, and text that is no YAML, are Load's business.
func CheckTests(paths []string) ([]Problem, error) {
	var out []Problem
	for _, p := range paths {
		names, err := List(p)
		if err != nil {
			return nil, fmt.Errorf("reading tests: %w", err)
		}
		for _, name := range names {
			text, err := ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("reading tests: %w", err)
			}
			if !testfile.MayHold(text) {
				continue
			}
			docs, _ := k8s.Split(text, name)
			for _, d := range docs {
				if !testfile.Is(d) {
					continue
				}
				if _, err := testfile.Read(d); err != nil {
					out = append(out, problemsOf(err, name)...)
				}
			}
		}
	}
	return out, nil
}
