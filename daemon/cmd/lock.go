package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// stateLock keeps a second agent off the state directory. The kernel drops it
// when the process ends, however it ends.
type stateLock struct{ file *os.File }

// lockState takes the lock; the error names the agent that holds it.
func lockState(dir string) (*stateLock, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the state directory: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			owner, _ := os.ReadFile(path)
			return nil, fmt.Errorf("state directory %s is in use by another agent (process %s); stop it, or give this one another --state-dir", dir, strings.TrimSpace(string(owner)))
		}
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	if err := file.Truncate(0); err == nil {
		_, err = file.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("writing the lock of the state directory: %w", err), file.Close())
		}
	}
	return &stateLock{file}, nil
}

func (l *stateLock) close() error { return l.file.Close() }
