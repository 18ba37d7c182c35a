package lab

import (
	"errors"
	"os"
	"os/exec"
	"strings"
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

func TestAnAgentThatEndedSpeaksForItself(t *testing.T) {
	asked := errors.New("nobody listens")
	running := &Lab{dir: t.TempDir(), Record: Record{AgentPID: os.Getpid()}}
	ended := &Lab{dir: t.TempDir()}
	for _, l := range []*Lab{running, ended} {
		text := "level=INFO msg=Starting\nweir-agent: no bpffs; mount one\nand a line behind it\n"
		if err := os.WriteFile(l.LogFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := ended.notReady(asked).Error(), "the agent ended: no bpffs; mount one"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := running.notReady(asked); !errors.Is(err, asked) {
		t.Errorf("an agent that runs: %v", err)
	}
}

// Everything that has a namespace is named where a name is wrong.
func TestAWrongNameIsAnsweredWithAllThatThereAre(t *testing.T) {
	l := &Lab{Record: Record{Pods: []*AttachedPod{{Pod: Pod{Namespace: "shop", Name: "api"}}}, Hosts: []*AttachedHost{{Host: Host{Name: "customer"}}}}}
	if _, err := l.Source("nobody"); err == nil || !strings.Contains(err.Error(), "shop/api, customer, node") {
		t.Errorf("got %v", err)
	}
	for name, want := range map[string]string{"api": "shop/api", "shop/api": "shop/api", "customer": "customer", "node": "node"} {
		if s, err := l.Source(name); err != nil || s.Name != want {
			t.Errorf("%s: got %s, %v", name, s.Name, err)
		}
	}
}
