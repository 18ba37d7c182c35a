package bpf

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is the time since boot, sleep included: the clock of events
// (CLOCK_BOOTTIME).
func BootTime() time.Duration {
	var ts unix.Timespec
	// It cannot fail: the clock exists since Linux 2.6.39.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano())
}

// FlowTime is the clock of conntrack entries (CLOCK_MONOTONIC): time since boot
// without sleep.
func FlowTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // as above
	return time.Duration(ts.Nano())
}

// BootID names this boot of the machine. Ids of kernel objects that were
// written down under another boot id mean nothing.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
