package lastgood

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/labels"
)

// Index is what is known to be in force, apart from the text of the objects.
type Index struct {
	Generation uint64 `json:"generation"` // grows with every Commit
	// Boot is that of the node in which the index was written: device numbers of
	// another one tell nothing.
	Boot    string             `json:"boot,omitempty"`
	Sources map[string]*Source `json:"sources,omitempty"` // by folder
	API     map[string]*File   `json:"api,omitempty"`     // policies put through the API, by their id
}

// Source is a folder.
type Source struct {
	Dirs  map[string]Identity `json:"dirs,omitempty"` // the folder and those below it that files were read from
	Files map[string]*File    `json:"files,omitempty"`
	// Flat says that an agent which did not read the folders below took the source
	// over: they wait until somebody accepts them.
	Flat bool `json:"flat,omitempty"`
	// Unknown is since when it has not been known what of the source had been in
	// force, because the index was lost; zero: it is known.
	Unknown time.Time `json:"unknown,omitzero"`
}

// Identity tells a folder from another one under the same name.
type Identity struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// File is what of a file is in force.
type File struct {
	// Versions are the last good one and, after it, earlier ones of which objects
	// are kept.
	Versions []Version `json:"versions"`
}

// Version is one text of a file.
type Version struct {
	Name    string    `json:"name"` // of the text in the store
	Sum     string    `json:"sha256"`
	Good    time.Time `json:"good"`           // since when it has been in force
	Only    []string  `json:"only,omitempty"` // the objects that are in force; nil: all
	Objects int       `json:"objects"`        // how many the text holds
	// Policies are those of the objects in force that govern pods.
	Policies []Policy `json:"policies,omitempty"`
	// Namespaces are the names of the Namespace objects.
	Namespaces []string `json:"namespaces,omitempty"`
	// Named says that it holds what policies name: groups, services, nodes.
	Named bool `json:"named,omitempty"`
}

// Policy is a policy object as far as it matters without its text.
type Policy struct {
	ID string `json:"id"` // kind/namespace/name
	// Subjects are the selectors of the pods that it governs; without one it may be any.
	Subjects [][]labels.Requirement `json:"subjects,omitempty"`
}

// indexFile is the form of an index on disk.
type indexFile struct {
	Version int             `json:"version"`
	Sum     string          `json:"sha256"` // of Index
	Index   json.RawMessage `json:"index"`
}

const indexVersion = 1

// Sum is the sum of a text by which a version is known.
func Sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// encode is the index as it is written.
func (x *Index) encode() ([]byte, error) {
	inner, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	return json.Marshal(indexFile{indexVersion, Sum(inner), inner})
}

// readIndex reads one copy. Fields that this version does not know are passed over.
func readIndex(path string) (*Index, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f indexFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	if f.Version < 1 || Sum(f.Index) != f.Sum {
		return nil, errors.New("its sum is not that of its content")
	}
	x := &Index{}
	if err := json.Unmarshal(f.Index, x); err != nil {
		return nil, err
	}
	return x, nil
}

// openIndex returns the newest whole copy; nil if there is none. damaged are those
// that could not be read, which are set aside.
func openIndex(paths []string) (newest *Index, damaged []error) {
	for _, path := range paths {
		x, err := readIndex(path)
		switch {
		case err == nil:
			if newest == nil || x.Generation > newest.Generation {
				newest = x
			}
		case errors.Is(err, fs.ErrNotExist):
		default:
			err = fmt.Errorf("%s: %w", path, err)
			if _, failed := atomicfile.SetAside(path); failed != nil {
				err = errors.Join(err, failed)
			}
			damaged = append(damaged, err)
		}
	}
	return newest, damaged
}

// writeIndex writes all copies. When the first one is on the disk it counts: the
// others, which are there for when it is damaged, are written without waiting.
func writeIndex(paths []string, x *Index) error {
	text, err := x.encode()
	if err != nil {
		return err
	}
	for i, path := range paths {
		write := atomicfile.Write
		if i == 0 {
			write = atomicfile.WriteSync
		}
		if err := write(path, text, 0o600); err != nil && i == 0 {
			return fmt.Errorf("writing which objects are in force: %w", err)
		}
	}
	return nil
}

// sweep removes the texts of a directory that are not named.
func sweep(dir string, named map[string]bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // it is tried again after the next change
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if !e.IsDir() && !named[e.Name()] && (ext == ".yaml" || ext == atomicfile.TempSuffix) {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
