package filesource

import (
	"errors"
	"os"
)

// ReadFile reads a file of objects. Pipes and devices are refused: a reader may
// wait for their end for ever, and a second one, as lint and tests are, finds
// nothing.
func ReadFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &os.PathError{Op: "read", Path: name, Err: errNoFile}
	}
	return os.ReadFile(name)
}

var errNoFile = errors.New("is a pipe, a device or a folder; give a file")
