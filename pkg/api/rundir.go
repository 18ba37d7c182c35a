package api

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
)

// HoldRunDir says, as long as the process lives or until it is closed, that an
// agent is there, even while its socket is not. The CNI plugin asks for it without
// taking the lock, so that it is never in the way of a start.
func HoldRunDir(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	path := filepath.Join(dir, v1.AgentLock)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the run directory: %w", err)
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("run directory %s is in use by another agent; stop it, or give this one another --run-dir", dir)
	}
	return nil, fmt.Errorf("lock the run directory %s: %w", path, err)
}
