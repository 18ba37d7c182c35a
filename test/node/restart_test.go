package node

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/test/box"
)

// pluginCommand is a call of weir-cni as a runtime makes it, with the
// configuration that the agent wrote. Pod is "namespace/name" or empty.
func pluginCommand(t *testing.T, b *box.Box, verb, container, netns, pod string) *exec.Cmd {
	t.Helper()
	config, err := b.PluginConfig()
	if err != nil {
		t.Fatal(err)
	}
	args := "IgnoreUnknown=1"
	if namespace, name, ok := strings.Cut(pod, "/"); ok {
		args += ";K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + name
	}
	cmd := exec.CommandContext(t.Context(), box.Binary(t, "weir-cni"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+container, "CNI_NETNS="+netns, "CNI_IFNAME=eth0", "CNI_PATH=/", "CNI_ARGS="+args)
	cmd.Stdin = strings.NewReader(string(config))
	return cmd
}

// run runs a command inside the node and returns its exit code and output.
func run(t *testing.T, b *box.Box, cmd *exec.Cmd) (int, string) {
	t.Helper()
	var out []byte
	err := b.Node().Do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// restart starts the agent and waits until it is ready.
func restart(t *testing.T, b *box.Box) {
	t.Helper()
	if err := b.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := box.WaitReady(b.Socket()); err != nil {
		t.Fatal(err)
	}
}

// talk opens a connection and sends a word every few milliseconds until stop is
// called, which returns the words that came back and what cut the flow.
func talk(t *testing.T, ns lab.Netns, to netip.AddrPort) (stop func() (words int, err error)) {
	t.Helper()
	var conn net.Conn
	err := ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), 2*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		words int
		err   error
	}
	quit, done := make(chan struct{}), make(chan end, 1)
	go func() {
		defer conn.Close()
		buf := make([]byte, 1)
		for n := 0; ; n++ {
			select {
			case <-quit:
				done <- end{n, nil}
				return
			case <-time.After(5 * time.Millisecond):
			}
			conn.SetDeadline(time.Now().Add(3 * time.Second))
			_, err := conn.Write([]byte{byte(n)})
			if err == nil {
				_, err = io.ReadFull(conn, buf)
			}
			if err != nil {
				done <- end{n, fmt.Errorf("after %d words: %w", n, err)}
				return
			}
		}
	}()
	return func() (int, error) {
		close(quit)
		e := <-done
		return e.words, e.err
	}
}

// nodeCommand is a command for run.
func nodeCommand(t *testing.T, words ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), words[0], words[1:]...)
}
