package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// fdTableSize is the number of descriptors that the table has room for after
// GrowFDTable. 250 endpoints hold about 3000.
const fdTableSize = 16000

// GrowFDTable makes the process's descriptor table large enough at once. In a
// process with threads the kernel waits for a grace period (4 to 24 ms) each
// time it doubles the table, and that wait would fall on some system call of a
// pod's start. Called once at start; calling it again costs nothing.
func GrowFDTable() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	from := uint64(fdTableSize)
	if from >= limit.Cur {
		from = limit.Cur - 1
	}
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, int(from))
	if err != nil {
		return fmt.Errorf("grow the table of open files to %d: %w; descriptor 0 must be open, raise the limit (ulimit -n)", from, err)
	}
	return unix.Close(fd)
}

// RemoveMemlock lifts the limit of locked memory where the kernel still counts
// BPF maps against it (before 5.11).
func RemoveMemlock() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("lift the limit of locked memory: %w; run as root or with CAP_SYS_RESOURCE", err)
	}
	return nil
}
