package cmd

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestASignalEndsACommandThatReadsPolicies(t *testing.T) {
	for _, args := range [][]string{{"policy", "suggest", "-"}, {"policy", "fmt", "-"}, {"policy", "apply", "-"}} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envLine+"="+strings.Join(args, "\n"))
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = r
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		// More than a pipe holds is written once the command reads.
		if _, err := io.WriteString(w, strings.Repeat("\n", 128<<10)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		w.Close() // where the signal does nothing, this ends the command
		err = cmd.Wait()
		var exited *exec.ExitError
		if !errors.As(err, &exited) || exited.Sys().(syscall.WaitStatus).Signal() != unix.SIGTERM {
			t.Errorf("%v ended with %v", args, err)
		}
	}
}
