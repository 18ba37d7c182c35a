package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// LayoutError says that a pinned map is not the one that was asked for.
type LayoutError struct {
	Path        string   // the pin
	Differences []string // "value size is 8, want 16"
}

// Error names the differences and what to do about them.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("the map pinned at %s is of another layout: %s; stop the agent and remove the pin to start with an empty map",
		e.Path, strings.Join(e.Differences, ", "))
}

// Open opens a pinned map and checks it against spec; MaxEntries 0 takes a map
// of any room. It returns a
// *LayoutError when they differ and an error that wraps os.ErrNotExist when
// nothing is pinned at path.
func Open(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open the map pinned at %s: %w", path, err)
	}
	if diff := layoutDifferences(spec, m); len(diff) > 0 {
		m.Close()
		return nil, &LayoutError{path, diff}
	}
	return m, nil
}

// OpenOrCreate opens the map pinned at path as Open does, or creates it from
// spec and pins it there. When two processes create at once, both get the map
// of the first.
func OpenOrCreate(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	m, err := Open(spec, path)
	if !errors.Is(err, os.ErrNotExist) {
		return m, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the map %s on the bpffs: %w", spec.Name, err)
	}
	m, err = Create(spec)
	if err != nil {
		return nil, err
	}
	err = m.Pin(path)
	if err == nil {
		return m, nil
	}
	m.Close()
	if errors.Is(err, os.ErrExist) {
		return Open(spec, path)
	}
	return nil, fmt.Errorf("pin the map %s at %s: %w", spec.Name, path, err)
}

// Create makes a map that is not pinned. On failure it looks for the feature
// that the kernel lacks.
func Create(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("create the map %s (%d entries): %w", spec.Name, spec.MaxEntries, explainMap(spec.Type, err))
	}
	return m, nil
}

func layoutDifferences(spec *ebpf.MapSpec, m *ebpf.Map) []string {
	var diff []string
	if m.Type() != spec.Type {
		diff = append(diff, fmt.Sprintf("type is %s, want %s", m.Type(), spec.Type))
	}
	for _, f := range []struct {
		what       string
		have, want uint32
	}{
		{"key size", m.KeySize(), spec.KeySize},
		{"value size", m.ValueSize(), spec.ValueSize},
		{"room", m.MaxEntries(), spec.MaxEntries},
		{"flags", m.Flags(), spec.Flags},
	} {
		if f.what == "room" && f.want == 0 {
			continue
		}
		if f.have != f.want {
			diff = append(diff, fmt.Sprintf("%s is %d, want %d", f.what, f.have, f.want))
		}
	}
	return diff
}
