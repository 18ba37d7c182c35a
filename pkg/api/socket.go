package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// ErrInUse says that another agent answers on the socket.
var ErrInUse = errors.New("another agent answers on the socket")

// maxSocketPath is the longest path that fits sun_path with its final zero (unix(7)).
const maxSocketPath = 107

// systemDirs are never tightened: other programs live there.
var systemDirs = []string{"/", "/run", "/var/run", "/tmp", "/var/tmp", "/var", "/var/lib", "/etc", "/dev", "/dev/shm", "/root", "/home", "/opt", "/srv", "/usr"}

// socket is a listening unix socket that knows its file.
type socket struct {
	net.Listener
	path  string
	inode uint64
}

// listen makes the socket: its directory has mode 0750, the socket 0600, or
// 0660 with the group where one is given (name or number). It is bound inside a
// private directory and renamed into place with its final mode, so that there
// is no moment at which others could connect. A socket that nobody answers on
// is replaced, one that is answered is refused with ErrInUse.
func listen(path, group string) (*socket, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, the kernel takes %d; choose a shorter run directory", path, len(path), maxSocketPath)
	}
	gid, mode := -1, fs.FileMode(0o600)
	if group != "" {
		g, err := lookupGroup(group)
		if err != nil {
			return nil, err
		}
		gid, mode = g, 0o660
	}
	dir := filepath.Dir(path)
	if err := privateDir(dir, gid); err != nil {
		return nil, err
	}
	if err := checkFree(path); err != nil {
		return nil, err
	}
	l, tmp, err := bindPrivately(dir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(filepath.Dir(tmp))
	err = os.Chmod(tmp, mode)
	if err == nil && gid >= 0 {
		err = os.Chown(tmp, -1, gid)
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Stat(tmp, &st)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("put the API socket at %s: %w", path, err)
	}
	return &socket{Listener: l, path: path, inode: st.Ino}, nil
}

// bindPrivately binds a socket in a new directory that only the owner may
// enter, and returns its path. The path given to bind goes through the
// directory's descriptor, so that a long name still fits.
func bindPrivately(dir string) (net.Listener, string, error) {
	private, err := os.MkdirTemp(dir, ".socket-") // mode 0700
	if err != nil {
		return nil, "", fmt.Errorf("make a private directory for the API socket: %w", err)
	}
	d, err := os.Open(private)
	if err != nil {
		return nil, "", fmt.Errorf("open the private directory of the API socket: %w", err)
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/s", d.Fd())})
	if err != nil {
		os.RemoveAll(private)
		return nil, "", fmt.Errorf("bind the API socket in %s: %w", private, err)
	}
	l.SetUnlinkOnClose(false) // it is renamed; close removes the final name
	return l, filepath.Join(private, "s"), nil
}

// privateDir makes the directory with mode 0750 and the group, or takes rights
// from others in an existing one.
func privateDir(dir string, gid int) error {
	if err := atomicfile.Dir(dir, 0o750); err != nil {
		return fmt.Errorf("make the run directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at the run directory: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("resolve the run directory: %w", err)
	}
	if slices.Contains(systemDirs, real) || info.Mode()&fs.ModeSticky != 0 {
		return fmt.Errorf("the API socket cannot live in %s, which other programs share; give it a directory of its own", dir)
	}
	if info.Mode().Perm()&0o027 != 0 {
		if err := os.Chmod(dir, info.Mode().Perm()&0o750|0o700); err != nil {
			return fmt.Errorf("close the run directory to others: %w", err)
		}
	}
	if gid >= 0 {
		if err := os.Chown(dir, -1, gid); err != nil {
			return fmt.Errorf("give the run directory to group %d: %w", gid, err)
		}
		if err := os.Chmod(dir, 0o750); err != nil {
			return fmt.Errorf("open the run directory to group %d: %w", gid, err)
		}
	}
	return nil
}

// checkFree fails when the path is no socket or is answered.
func checkFree(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the API socket %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		if _, err := atomicfile.SetAside(path); err != nil {
			return fmt.Errorf("%s is not a socket and cannot be set aside: %w", path, err)
		}
		return nil
	}
	c, err := net.DialTimeout("unix", path, 2*time.Second)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("%w %s; stop it or give this one another run directory", ErrInUse, path)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("ask whether %s is in use: %w", path, err)
}

// Close stops listening and removes the file if it is still this socket's.
func (s *socket) Close() error {
	err := s.Listener.Close()
	var st unix.Stat_t
	if unix.Lstat(s.path, &st) == nil && st.Ino == s.inode {
		os.Remove(s.path)
	}
	return err
}

func lookupGroup(name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil && n >= 0 {
		return n, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("group %q of the API socket: %w; create it or leave the setting empty", name, err)
	}
	return strconv.Atoi(g.Gid)
}
