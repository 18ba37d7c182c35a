package cmd

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// envLine makes the test binary weir itself, with this command line.
const envLine = "WEIR_CLI_TEST_LINE"

func TestMain(m *testing.M) {
	if line, ok := os.LookupEnv(envLine); ok {
		os.Exit(Execute(strings.Split(line, "\n"), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// unread runs a command line whose standard output nobody reads.
func unread(t *testing.T, temp string, args ...string) (code int, errOut string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	var stderr bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envLine+"="+strings.Join(args, "\n"), "TMPDIR="+temp)
	cmd.Stdout, cmd.Stderr = w, &stderr
	var exited *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String() // -1 where a signal ended it
}

func TestAReaderThatWentAwayEndsACommandInOrder(t *testing.T) {
	if code, errOut := unread(t, t.TempDir(), "policy", "test", shop); code != exitPipe || errOut != "" {
		t.Errorf("exit code %d, want %d; %q", code, exitPipe, errOut)
	}
}

func TestWhatFailsBesideAClosedPipeIsKept(t *testing.T) {
	pipe := &os.PathError{Op: "write", Path: "/dev/stdout", Err: unix.ENOSPC}
	if rest, gone := withoutPipe(pipe); gone || rest == nil {
		t.Errorf("another error of a file was taken for a closed pipe: %v", rest)
	}
	pipe.Err = unix.EPIPE
	rest, gone := withoutPipe(errors.Join(errors.Join(pipe, errNo), os.ErrClosed))
	if !gone || !errors.Is(rest, errNo) || !errors.Is(rest, os.ErrClosed) || errors.Is(rest, unix.EPIPE) {
		t.Errorf("left %v, %v", rest, gone)
	}
	if rest, gone := withoutPipe(errors.Join(pipe, nil)); !gone || rest != nil {
		t.Errorf("left %v, %v", rest, gone)
	}
}
