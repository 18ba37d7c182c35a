package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// asideMark stands between a file's name and the time when it was set aside.
const (
	asideMark = ".bad-"
	asideTime = "20060102T150405.000000000"
	formerEnd = ".damaged" // of what agents before this form set aside
)

// Aside is a file or directory that could not be used and was kept beside its place.
type Aside struct {
	Path  string    // where it is now
	Of    string    // where it was
	Since time.Time // UTC; zero where its name does not tell
}

// SetAside renames what is at path, a file or a directory, so that a new one can
// take its place and nothing is lost.
func SetAside(path string) (Aside, error) {
	now := time.Now().UTC()
	a := Aside{Path: path + asideMark + now.Format(asideTime), Of: path, Since: now}
	if err := os.Rename(path, a.Path); err != nil {
		return Aside{Path: path, Of: path, Since: now}, err
	}
	return a, nil
}

// ListAside finds what was set aside in directories and below, in the order of
// paths, until somebody removes it. A directory that is missing holds nothing.
func ListAside(dirs ...string) ([]Aside, error) {
	var out []Aside
	var errs []error
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil // or it went meanwhile
				}
				return err
			}
			a, ok := parseAside(path)
			if !ok {
				return nil
			}
			out = append(out, a)
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		})
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// IsAside reports whether a name is one that SetAside gives.
func IsAside(name string) bool {
	_, ok := parseAside(filepath.Base(name))
	return ok
}

func parseAside(path string) (Aside, bool) {
	dir, name := filepath.Split(path)
	if of, ok := strings.CutSuffix(name, formerEnd); ok && of != "" {
		return Aside{Path: path, Of: dir + of}, true
	}
	of, when, ok := strings.Cut(name, asideMark)
	since, err := time.Parse(asideTime, when)
	if !ok || of == "" || err != nil {
		return Aside{}, false
	}
	return Aside{Path: path, Of: dir + of, Since: since}, true
}
