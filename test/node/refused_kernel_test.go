package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// refuseEnv names the agent that this binary is to become, see refusing.
const refuseEnv = "TEST_AGENT_WITHOUT_PROGRAMS"

// init becomes an agent whose BPF_PROG_LOAD gives E2BIG, where refusing asks for it.
func init() {
	agent := os.Getenv(refuseEnv)
	if agent == "" {
		return
	}
	const progLoad = 5
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: skip}
	}
	ret := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	filter := []unix.SockFilter{
		load(0), unless(unix.SYS_BPF, 3), // struct seccomp_data: the number of the call,
		load(16), unless(progLoad, 1), // its first argument
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.E2BIG)), ret(unix.SECCOMP_RET_ALLOW),
	}
	runtime.LockOSThread() // the thread that has the filter is the one that becomes the agent
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	}
	if err == nil {
		err = unix.Exec(agent, append([]string{agent}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// refusing makes the box's next agents ones that the kernel refuses programs, until
// the returned function is called.
func refusing(t *testing.T, b *box.Box) (back func()) {
	t.Helper()
	agent := b.Record.Agent
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(t.TempDir(), filepath.Base(agent)) // the lab knows its agent by the name
	script := fmt.Sprintf("#!/bin/sh\nexport %s='%s'\nexec '%s' \"$@\"\n", refuseEnv, agent, self)
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b.Record.Agent = wrapper
	return func() { b.Record.Agent = agent }
}

// subjects are those of the status' warnings of a code.
func subjects(t *testing.T, b *box.Box, code string) (of []string) {
	t.Helper()
	for _, c := range warnings(t, b, code) {
		of = append(of, c.Subject)
	}
	return of
}

func TestN06APolicyIsInForceAfterAStartWhoseProgramsTheKernelRefuses(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	expect(t, b, "before", web, client, stranger)
	for _, c := range []struct{ name, spoil string }{
		{"the bodies of the last agent are used again", ""},
		{"not even the bodies are loaded", "shapes/*/record.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := b.KillAgent(); err != nil {
				t.Fatal(err)
			}
			if c.spoil != "" {
				records, err := filepath.Glob(filepath.Join(b.Dir(), "run", "state", c.spoil))
				if err != nil || len(records) == 0 {
					t.Fatalf("records %v, %v", records, err)
				}
				for _, r := range records {
					if err := os.Remove(r); err != nil {
						t.Fatal(err)
					}
				}
			}
			// Made while no agent runs: the client is shut out, the stranger let in.
			b.Write("web.yaml", strings.Replace(webOnly, "role: client", "role: other", 1))
			back := refusing(t, b)
			defer back()
			restart(t, b)
			b.Settle()
			expect(t, b, "with the former programs", web, stranger, client)
			if got := subjects(t, b, "programs-refused"); len(got) < 3 {
				t.Errorf("the status names %v, want the three endpoints", got)
			}
			b.Write("web.yaml", webOnly) // and while it runs
			b.Settle()
			expect(t, b, "changed while the kernel refuses", web, client, stranger)
			newPodIsRefused(t, b)
			if err := b.StopAgent(); err != nil {
				t.Fatal(err)
			}
			back()
			restart(t, b)
			b.Eventually("all endpoints ready", allReady(t, b, 3))
			expect(t, b, "afterwards", web, client, stranger)
			if got := subjects(t, b, "programs-refused"); len(got) != 0 {
				t.Errorf("the status still names %v", got)
			}
			if s, err := b.Agent.Status(t.Context()); err != nil || s.Verdict != gen.StateOk {
				t.Errorf("status %+v, %v", s, err)
			}
		})
	}
}

// newPodIsRefused checks that a pod without programs does not come up, and who says why.
func newPodIsRefused(t *testing.T, b *box.Box) {
	t.Helper()
	late := prepare(t, b, "late", 0)
	ctx, cancel := context.WithCancel(t.Context())
	attached := make(chan error, 1)
	go func() { attached <- b.Attach(ctx, late) }()
	b.Eventually("the new endpoint names the cause", func() bool {
		eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
		return err == nil && slices.ContainsFunc(eps, func(e gen.Endpoint) bool {
			return e.ContainerID == late.ContainerID && strings.Contains(fmt.Sprintf("%+v", e), "argument list too long")
		})
	})
	cancel()
	if err := <-attached; err == nil {
		t.Error("a pod without programs was attached")
	}
	if err := b.Detach(t.Context(), late); err != nil {
		t.Error(err)
	}
	removeAll(t, b, []*lab.AttachedPod{late})
}
