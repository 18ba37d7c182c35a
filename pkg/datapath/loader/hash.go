package loader

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
)

// baseHash is the part of an object's hash that all shapes share: sources and
// compiler flags. Headers of the system and the compiler's version are not in
// it, so that an object built elsewhere is found by a node without a compiler.
type baseHash [sha256.Size]byte

func newBaseHash(sources fs.FS, flags []string) (baseHash, error) {
	h := sha256.New()
	err := eachSource(sources, func(path string, data []byte) error {
		field(h, path)
		field(h, string(data))
		return nil
	})
	if err != nil {
		return baseHash{}, err
	}
	for _, f := range flags {
		field(h, f)
	}
	return baseHash(h.Sum(nil)), nil
}

// hashTemplate returns the name of the object for a configuration, 64
// hexadecimal digits.
func (b baseHash) hashTemplate(cfg templateCfg) string {
	h := sha256.New()
	h.Write(b[:])
	field(h, cfg.header())
	return hex.EncodeToString(h.Sum(nil))
}

// field writes s with its length, so that no two lists of fields run together.
func field(w io.Writer, s string) {
	fmt.Fprintf(w, "%d:", len(s))
	io.WriteString(w, s)
}

// eachSource calls fn for every .c and .h file in the folder and in its lib/,
// in lexical order. Other folders, such as tests, do not belong to an object.
func eachSource(sources fs.FS, fn func(path string, data []byte) error) error {
	found := false
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && path != "lib" {
			return fs.SkipDir
		}
		if d.IsDir() || !isSource(path) {
			return nil
		}
		found = true
		data, err := fs.ReadFile(sources, path)
		if err != nil {
			return err
		}
		return fn(path, data)
	})
	if err != nil {
		return fmt.Errorf("read the BPF sources: %w", err)
	}
	if !found {
		return fmt.Errorf("read the BPF sources: no .c or .h file in them: %w", fs.ErrNotExist)
	}
	return nil
}

func isSource(path string) bool {
	n := len(path)
	return n > 2 && (path[n-2:] == ".c" || path[n-2:] == ".h")
}
