package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/testutils"
)

func TestTheAgentRunsOnceAndHoldsNothingOfItsCaller(t *testing.T) {
	testutils.Kernel(t)
	l := &Lab{dir: t.TempDir(), Record: Record{Agent: "/bin/sleep", AgentArgs: []string{"60"}}}
	if _, err := NewNetns(string(l.Node())); err != nil {
		t.Fatal(err)
	}
	defer l.Node().Remove()
	lock, err := unix.Open(filepath.Join(l.dir, "lock"), unix.O_CREAT|unix.O_RDWR, 0o600) // as a shell gives it: not O_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(lock)
	if err := l.StartAgent(); err != nil {
		t.Fatal(err)
	}
	defer l.KillAgent()
	if held, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", l.Record.AgentPID, lock)); err == nil {
		t.Errorf("the agent holds %s", held)
	}
	pid := l.Record.AgentPID
	if err := l.StartAgent(); err == nil || l.Record.AgentPID != pid {
		t.Errorf("a second agent was started: %v", err)
	}
	if err := l.KillAgent(); err != nil {
		t.Fatal(err)
	}
	if err := l.StartAgent(); err != nil {
		t.Errorf("after its end: %v", err)
	}
}
