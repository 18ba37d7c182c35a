package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Damage says that a file of state could not be used, and where it is now.
type Damage struct {
	Aside
	Err error // why
}

// Error names the place, the reason and what is kept.
func (d *Damage) Error() string {
	if d.Path == d.Of {
		return fmt.Sprintf("%s cannot be used: %v", d.Of, d.Err)
	}
	return fmt.Sprintf("%s cannot be used: %v; it is kept as %s", d.Of, d.Err, d.Path)
}

// Unwrap returns why the file could not be used.
func (d *Damage) Unwrap() error { return d.Err }

// Load gives a file of state to take. What is no file, belongs to another user,
// cannot be read or is not taken is set aside and returned as damage; the caller
// goes on without it. A file that is missing is no damage. Nor is what stands in
// the way of the next Write: that is set aside too.
func Load(path string, take func([]byte) error) *Damage {
	if i, err := os.Lstat(path + TempSuffix); err == nil && i.IsDir() {
		_, _ = SetAside(path + TempSuffix) // the next Write names what is left
	}
	data, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := os.Lstat(path); gone != nil {
			return nil
		} // else a link that leads nowhere
	}
	if err == nil {
		err = take(data)
	}
	if err == nil {
		return nil
	}
	a, moved := SetAside(path)
	if moved != nil {
		err = errors.Join(err, fmt.Errorf("it cannot be set aside: %w", moved))
	}
	return &Damage{a, err}
}

func readState(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a pipe would be waited for
		return nil, errors.New("it is no regular file")
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("it belongs to user %d", s.Uid)
	}
	return os.ReadFile(path)
}

// Dir makes a directory for state, with its parents. What stands in its place
// and is none is set aside.
func Dir(path string, perm fs.FileMode) error {
	if _, err := os.Lstat(path); err == nil {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return nil
		}
		if _, err := SetAside(path); err != nil {
			return err
		}
	}
	return os.MkdirAll(path, perm)
}

// Private is Dir for a directory that holds what decides about others. It must
// belong to the caller or to root; one that others may write into gets perm. One
// that is shared by design, with a sticky bit, is refused.
func Private(path string, perm fs.FileMode) error {
	if err := Dir(path, perm); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who could change what is kept there; look at what is in it, then remove it or give it to root (chown -R root %s)", path, s.Uid, path)
	}
	switch mode := info.Mode(); {
	case mode&fs.ModeSticky != 0:
		return fmt.Errorf("%s is shared with other programs (it has the sticky bit); give a directory of its own", path)
	case mode.Perm()&0o022 != 0:
		return os.Chmod(path, mode.Perm()&perm)
	}
	return nil
}

// OpenLock opens a file that is only locked, and makes it where it is missing.
// What stands in its place and is no file is set aside.
func OpenLock(path string) (*os.File, error) {
	if i, err := os.Lstat(path); err == nil && !i.Mode().IsRegular() {
		if _, err := SetAside(path); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
}
