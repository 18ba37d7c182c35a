package api

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/testutils"
)

// envAttack makes the test binary an ordinary user's program: it tries to
// connect to a socket and prints what happened.
const envAttack = "WEIR_API_TEST_ATTACK"

func TestMain(m *testing.M) {
	if path := os.Getenv(envAttack); path != "" {
		attack(path)
		return
	}
	os.Exit(m.Run())
}

// attack connects once, or with "loop:" until standard input closes, to the
// socket and to whatever lies in directories beside it.
func attack(path string) {
	path, loop := strings.CutPrefix(path, "loop:")
	if !loop {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		fmt.Printf("uid %d gid %d: permission %t, connected %t\n", os.Getuid(), os.Getgid(), errors.Is(err, fs.ErrPermission), err == nil)
		return
	}
	done := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(done) }()
	tries, connected := 0, 0
	for {
		select {
		case <-done:
			fmt.Printf("tried %t, connected %d\n", tries > 0, connected)
			return
		default:
		}
		hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".socket-*", "s"))
		for _, p := range append(hidden, path) {
			tries++
			if c, err := net.Dial("unix", p); err == nil {
				c.Close()
				connected++
			}
		}
	}
}

// sharedDir is a directory below /tmp that every user can enter.
func sharedDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "weir-api-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// asUser prepares a run of this test binary as an ordinary user.
func asUser(t *testing.T, uid, gid uint32, target string) *exec.Cmd {
	self, err := os.Executable()
	require.NoError(t, err)
	text, err := os.ReadFile(self)
	require.NoError(t, err)
	bin := filepath.Join(sharedDir(t), "attack")
	require.NoError(t, os.WriteFile(bin, text, 0o755))
	require.NoError(t, os.Chmod(bin, 0o755))
	cmd := exec.Command(bin)
	cmd.Env = []string{envAttack + "=" + target}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, NoSetGroups: false}}
	cmd.Stderr = os.Stderr
	return cmd
}

func tryAs(t *testing.T, uid, gid uint32, path string) string {
	out, err := asUser(t, uid, gid, path).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// TestG19OrdinaryUsersCannotUseTheSocket runs the entry's test: socket 0600,
// directory 0750, uid and gid 1000 refused, also after a restart.
func TestG19OrdinaryUsersCannotUseTheSocket(t *testing.T) {
	testutils.Kernel(t)
	old := unix.Umask(0) // the worst umask an agent can be started with
	defer unix.Umask(old)
	dir := filepath.Join(sharedDir(t), "run")
	path := filepath.Join(dir, "weir.sock")
	const refused = "uid 1000 gid 1000: permission true, connected false"
	for _, start := range []string{"first start", "restart after a clean end", "restart after kill -9"} {
		s, err := listen(path, "")
		require.NoError(t, err, start)
		require.Equal(t, fs.FileMode(0o600), mode(t, path), start)
		require.Equal(t, fs.FileMode(0o750), mode(t, dir), start)
		require.Equal(t, refused, tryAs(t, 1000, 1000, path), start)
		// The socket's own mode must hold without the directory's.
		require.NoError(t, os.Chmod(dir, 0o755))
		require.Equal(t, refused, tryAs(t, 1000, 1000, path), start)
		if start == "restart after a clean end" {
			s.Listener.Close() // the file stays, as after a kill
		} else {
			require.NoError(t, s.Close())
		}
	}
}

func TestNobodyConnectsWhileTheSocketIsMade(t *testing.T) {
	testutils.Kernel(t)
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := filepath.Join(sharedDir(t), "run")
	path := filepath.Join(dir, "weir.sock")
	require.NoError(t, os.Mkdir(dir, 0o750))
	require.NoError(t, os.Chown(dir, 0, 1000)) // lets the attacker into the directory
	cmd := asUser(t, 1000, 1000, "loop:"+path)
	stop, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for range 300 {
		s, err := listen(path, "")
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
	require.NoError(t, stop.Close())
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.Equal(t, "tried true, connected 0", strings.TrimSpace(string(text)))
}

func TestTheConfiguredGroupMayUseTheSocket(t *testing.T) {
	testutils.Kernel(t)
	dir := filepath.Join(sharedDir(t), "run")
	path := filepath.Join(dir, "weir.sock")
	s, err := listen(path, "1000")
	require.NoError(t, err)
	defer s.Close()
	require.Equal(t, fs.FileMode(0o660), mode(t, path))
	require.Equal(t, fs.FileMode(0o750), mode(t, dir))
	require.Equal(t, "uid 1001 gid 1000: permission false, connected true", tryAs(t, 1001, 1000, path))
	require.Equal(t, "uid 1000 gid 1001: permission true, connected false", tryAs(t, 1000, 1001, path))
}
