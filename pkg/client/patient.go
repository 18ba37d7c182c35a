package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
)

// absentWait is how long a patient client asks where no process of an agent lives:
// one that is restarted is away for a moment.
const absentWait = 5 * time.Second

// Times between two questions.
const (
	patientMin = 20 * time.Millisecond
	patientMax = 250 * time.Millisecond
)

// patience is how long a client asks an agent that does not take requests.
type patience struct {
	runDir           string
	starting, absent time.Duration

	waited time.Duration // by all calls together
	alone  time.Duration // of it, without a process of an agent, since one was last seen
}

// Patient returns a client whose calls ask again while the agent starts, wait at the
// most, and 5 seconds (or wait, if that is less) where the lock of the run directory
// tells that there is no agent. Only requests that may be repeated should be made by
// it: an agent may end in the middle of one. It is for one caller at a time.
func (c *Client) Patient(runDir string, wait time.Duration) *Client {
	p := *c
	p.patience = &patience{runDir: runDir, starting: wait, absent: min(absentWait, wait)}
	return &p
}

// again waits for the next attempt after a failure; the error says why there is none.
func (p *patience) again(ctx context.Context, err error) error {
	if p == nil || !away(err) {
		return err
	}
	if AgentAlive(p.runDir) {
		p.alone = 0
	} else if p.alone >= p.absent {
		return v1.Errorf(v1.CodeUnreachable, "start it: systemctl start weir-agent, or weir-agent --config FILE; its log tells why it ended",
			"weir-agent is not running (run directory %s): %w", p.runDir, err)
	}
	if p.waited >= p.starting {
		code := v1.CodeOf(err)
		return v1.Errorf(code, "weir status tells what it waits for; the wait is agentWaitSeconds of the CNI configuration",
			"weir-agent is still starting after %s: %w", p.starting, err)
	}
	pause := min(max(p.waited/8, patientMin), patientMax)
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", err, ctx.Err())
	case <-time.After(pause):
	}
	p.waited += pause
	p.alone += pause
	return nil
}

// AgentAlive reports whether a process of an agent holds the run directory. It takes
// no lock itself. Where that cannot be told, there may be one.
func AgentAlive(runDir string) bool {
	f, err := os.Open(filepath.Join(runDir, v1.AgentLock))
	if err != nil {
		return !os.IsNotExist(err)
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return true
	}
	return l.Type != unix.F_UNLCK
}
