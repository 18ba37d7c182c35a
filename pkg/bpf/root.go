package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultFS is where a bpffs is mounted by custom.
const DefaultFS = "/sys/fs/bpf"

// CheckFS reports whether path is a directory on a bpffs.
func CheckFS(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("look for a bpffs at %s: %w; mount one with: mount -t bpf bpf %s", path, err, DefaultFS)
	}
	if uint64(st.Type)&0xffffffff != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is not on a bpffs; mount one with: mount -t bpf bpf %s", path, DefaultFS)
	}
	return nil
}

// Root is the directory on a bpffs under which one agent keeps all its pins.
// Two agents on one kernel have two roots and do not see each other.
type Root struct {
	Path string // absolute
}

// OpenRoot makes the directory if needed and checks that it is on a bpffs.
func OpenRoot(path string) (Root, error) {
	r := Root{filepath.Clean(path)}
	if !filepath.IsAbs(r.Path) {
		return Root{}, fmt.Errorf("bpffs root %q is not an absolute path; give one under %s", path, DefaultFS)
	}
	// The nearest existing parent decides, so that nothing is made on another file system.
	parent := r.Path
	for {
		_, err := os.Stat(parent)
		if err == nil {
			break
		}
		if !os.IsNotExist(err) {
			return Root{}, fmt.Errorf("open bpffs root %s: %w", path, err)
		}
		parent = filepath.Dir(parent)
	}
	if err := CheckFS(parent); err != nil {
		return Root{}, fmt.Errorf("open bpffs root %s: %w", path, err)
	}
	if err := r.MkdirAll(r.Path); err != nil {
		return Root{}, err
	}
	if err := r.tighten(); err != nil {
		return Root{}, fmt.Errorf("open bpffs root %s: %w", path, err)
	}
	return r, nil
}

// tighten takes the rights of others away from the root, and refuses one in which
// something is not of root: whoever may put pins there decides what the programs do.
func (r Root) tighten() error {
	info, err := os.Lstat(r.Path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("it is no directory, or a link to one; give the directory itself")
	}
	if info.Mode()&fs.ModeSticky != 0 {
		return errors.New("it is shared with other programs (it has the sticky bit); give a directory of its own below it")
	}
	err = filepath.WalkDir(r.Path, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to user %d, who could change what is pinned there; remove it, or give another root", path, s.Uid)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return os.Chmod(r.Path, 0o700)
	}
	return nil
}

// Map is the pin path of a map.
func (r Root) Map(name string) string { return filepath.Join(r.Path, "maps", name) }

// Shape is the directory of an object shape's pins.
func (r Root) Shape(hash string) string { return filepath.Join(r.Path, "shapes", hash) }

// Shapes is the directory that holds all shapes.
func (r Root) Shapes() string { return filepath.Join(r.Path, "shapes") }

// Endpoints is the directory that holds all endpoints' directories.
func (r Root) Endpoints() string { return filepath.Join(r.Path, "endpoints") }

// MkdirAll makes a directory inside the root. A bpffs refuses names with a dot
// (the kernel keeps them for itself), so they are refused here with a reason.
func (r Root) MkdirAll(path string) error {
	rel, err := filepath.Rel(r.Path, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return fmt.Errorf("make directory %s: it is outside the bpffs root %s", path, r.Path)
	}
	if rel != "." && strings.Contains(rel, ".") {
		return fmt.Errorf("make directory %s: a bpffs allows no dot in a name", path)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make directory %s on the bpffs: %w", path, err)
	}
	return nil
}
