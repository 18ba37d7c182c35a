package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// Build is the input of BuildObjects.
type Build struct {
	Clang   string // path or name; empty: clang-19, else clang
	Source  string // file to compile; empty: bpf_lxc.c
	Sources fs.FS  // the folder bpf/
	Dir     string // where the objects go; other *.o files there are removed
	Logger  *slog.Logger
}

// BuildObjects compiles shapes into <dir>/<hash>.o, the names under which a
// Loader looks for built-in objects, and returns the files. Objects whose
// sources and flags have not changed are left alone. After a failure the build
// directory stays, and the error names it.
func BuildObjects(ctx context.Context, b Build, shapes []Shape) ([]string, error) {
	work, err := os.MkdirTemp("", "weir-objects-")
	if err != nil {
		return nil, fmt.Errorf("make a build directory: %w", err)
	}
	if b.Source == "" {
		b.Source = "bpf_lxc.c"
	}
	c := &compiler{path: b.Clang, source: b.Source, sources: b.Sources, logger: b.Logger}
	cache, err := newObjectCache(work, nil, c, b.Logger)
	if err != nil {
		return nil, err
	}
	defer cache.close()
	var files []string
	wanted := map[string]bool{}
	for _, shape := range shapes {
		if err := shape.check(); err != nil {
			return files, err
		}
		hash := cache.base.hashTemplate(wrap(configuration{Shape: shape}))
		file := filepath.Join(b.Dir, filepath.Base(builtinPath(hash)))
		if err := buildObject(ctx, cache, shape, hash, file); err != nil {
			return files, err
		}
		files, wanted[file] = append(files, file), true
	}
	old, err := filepath.Glob(filepath.Join(b.Dir, "*.o"))
	for _, o := range old {
		if !wanted[o] {
			err = errors.Join(err, os.Remove(o))
		}
	}
	return files, errors.Join(err, os.RemoveAll(work))
}

func buildObject(ctx context.Context, cache *objectCache, shape Shape, hash, file string) error {
	if data, err := os.ReadFile(file); err == nil {
		if _, err := parseObject(file, data); err == nil {
			return nil
		}
	}
	if _, err := cache.fetchOrCompile(ctx, configuration{Shape: shape}); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(cache.dir, hash, cache.compiler.object()))
	if err != nil {
		return fmt.Errorf("read the compiled object of shape %s: %w", shape, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory of built-in objects: %w", err)
	}
	return atomicfile.Write(file, data, 0o640)
}
