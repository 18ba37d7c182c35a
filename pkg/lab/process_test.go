package lab

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestAliveKnowsTheBinaryAndZombies(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if !alive(pid, "/somewhere/sleep") || !alive(pid, "") || alive(pid, "weir-agent") {
		t.Error("a running process is not told from another binary's")
	}
	if !alive(os.Getpid(), "") {
		t.Error("this process is not alive")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); alive(pid, "sleep"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a zombie without threads counts as alive") // nobody waited for it yet
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the killed process ended well")
	}
	if alive(pid, "sleep") {
		t.Error("a process that was waited for is alive")
	}
}
