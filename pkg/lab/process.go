package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StartAgent starts the agent in the node's namespace, unless it runs; its log
// goes to LogFile.
func (l *Lab) StartAgent() error {
	if pid := l.Record.AgentPID; pid != 0 && alive(pid, l.Record.Agent) {
		return fmt.Errorf("starting the agent: it runs already, as process %d; stop it first", pid)
	}
	pid, err := l.spawn(l.LogFile(), append([]string{l.Record.Agent}, l.Record.AgentArgs...))
	if err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	l.Record.AgentPID = pid
	return l.save()
}

// StopAgent ends the agent and waits until it is gone. Traffic goes on.
func (l *Lab) StopAgent() error { return l.stop(&l.Record.AgentPID, l.Record.Agent, unix.SIGTERM) }

// KillAgent ends the agent as a crash would.
func (l *Lab) KillAgent() error { return l.stop(&l.Record.AgentPID, l.Record.Agent, unix.SIGKILL) }

// cleanAgent lets the agent's own clean-up undo what it set on the node.
func (l *Lab) cleanAgent(ctx context.Context) error {
	if len(l.Record.AgentArgs) == 0 {
		return nil
	}
	if _, err := os.Stat(string(l.Node())); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return l.Node().Do(func() error {
		cmd := exec.CommandContext(ctx, l.Record.Agent, append([]string{"cleanup"}, l.Record.AgentArgs...)...)
		cmd.Env = environ()
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("weir-agent cleanup: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func (l *Lab) startServer(command []string) error {
	pid, err := l.spawn(filepath.Join(l.dir, "server.log"), append(append([]string{}, command...), l.dir))
	if err != nil {
		return fmt.Errorf("starting the servers: %w", err)
	}
	l.Record.ServerPID = pid
	if err := l.save(); err != nil {
		return err
	}
	ready := filepath.Join(l.dir, "server.ready")
	for range 200 {
		if _, err := os.Stat(ready); err == nil {
			return nil
		}
		if !alive(pid, command[0]) {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	text, _ := os.ReadFile(filepath.Join(l.dir, "server.log"))
	return fmt.Errorf("the servers did not come up: %s", strings.TrimSpace(string(text)))
}

func (l *Lab) stopServer() error { return l.stop(&l.Record.ServerPID, "", unix.SIGTERM) }

// environ is the caller's environment without settings of another agent: a lab has
// its own.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEIR_") })
}

// spawn starts a process in the node's namespace that outlives this one, and so
// must not hold what this one got from its caller, such as the descriptor of a lock.
func (l *Lab) spawn(logFile string, command []string) (pid int, err error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("keeping descriptors to this process: %w; it needs Linux 5.11", err)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = environ(), out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := l.Node().Do(cmd.Start); err != nil {
		return 0, err
	}
	go cmd.Wait() // reaps it while this process lives
	return cmd.Process.Pid, nil
}

// stop signals the process in *pid, if it still runs the binary, and waits for
// its end: 10 seconds, then it is killed.
func (l *Lab) stop(pid *int, binary string, sig unix.Signal) error {
	if *pid == 0 {
		return nil
	}
	if alive(*pid, binary) {
		if err := unix.Kill(*pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stopping process %d: %w", *pid, err)
		}
	}
	for i := 0; alive(*pid, binary); i++ {
		if i == 400 {
			unix.Kill(*pid, unix.SIGKILL)
		}
		if i == 600 {
			return fmt.Errorf("process %d does not end", *pid)
		}
		time.Sleep(25 * time.Millisecond)
	}
	*pid = 0
	return l.save()
}

// alive reports whether pid runs the binary and is not a zombie. An empty
// binary stands for any. A process that was killed is alive until its last
// thread ended: until then it holds its files, and with them its locks.
func alive(pid int, binary string) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if strings.HasPrefix(rest, "Z") {
		threads, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		return len(threads) > 1
	}
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	return err != nil || binary == "" || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == filepath.Base(binary)
}

// notReady says why the agent did not become ready: by its own last word, if it
// ended, else by what asking it gave.
func (l *Lab) notReady(asked error) error {
	text, err := os.ReadFile(l.LogFile())
	if err != nil || alive(l.Record.AgentPID, l.Record.Agent) {
		return fmt.Errorf("waiting for the agent: %w", asked)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if word, ok := strings.CutPrefix(lines[i], "weir-agent: "); ok {
			return fmt.Errorf("the agent ended: %s", word)
		}
	}
	return fmt.Errorf("the agent ended and did not say why: %w", asked)
}

// logTail returns the last lines of the agent's log, for an error text.
func (l *Lab) logTail(n int) string {
	text, err := os.ReadFile(l.LogFile())
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "\nlast lines of the agent's log:\n  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}
