package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// stateLock keeps a second agent off a directory. The kernel drops it when the
// process ends, however it ends.
type stateLock struct{ file *os.File }

// lockState makes sure that directories are ours alone and takes the lock of the
// state directory; the error names the agent that holds it.
func lockState(c *Config) (*stateLock, error) {
	for _, dir := range []string{c.RunDir, c.StateDir, c.DataDir} {
		if err := atomicfile.Private(dir, 0o750); err != nil {
			return nil, fmt.Errorf("directory of the agent's state: %w", err)
		}
	}
	file, err := atomicfile.OpenLock(filepath.Join(c.StateDir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the state directory: %w", err)
	}
	l, err := lock(file, "state directory "+c.StateDir, "--state-dir")
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(0); err == nil {
		_, err = file.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("writing the lock of the state directory: %w", err), file.Close())
		}
	}
	return l, nil
}

// lockRoot takes the lock of the bpffs root, which is there. A bpffs takes no files,
// so the directory itself is locked.
func lockRoot(path string) (*stateLock, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the bpffs root to lock it: %w", err)
	}
	return lock(file, "bpffs root "+path, "--bpf-root")
}

func lock(file *os.File, what, flag string) (*stateLock, error) {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return &stateLock{file}, nil
	}
	defer file.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s is in use by another agent (%s); stop it, or give this one another %s", what, holder(file), flag)
	}
	return nil, fmt.Errorf("locking the %s: %w", what, err)
}

// holder names the process that holds the lock of a file, with its command.
func holder(file *os.File) string {
	info, err := file.Stat()
	if err != nil {
		return "its process is not known"
	}
	s := info.Sys().(*syscall.Stat_t)
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino)
	locks, _ := os.ReadFile("/proc/locks") // else nobody is named
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // 1: FLOCK ADVISORY WRITE 4711 00:1f:12 0 EOF
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != inode {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			continue
		}
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return fmt.Sprintf("process %d: %s", pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")))
	}
	return "its process is not known"
}

func (l *stateLock) close() error { return l.file.Close() }
