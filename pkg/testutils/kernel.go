package testutils

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// envRequire set to 1 turns a skip into a failure.
	envRequire = "WEIR_KERNEL_TESTS"
	// envBPFFS names the bpffs to work under; the default is bpf.DefaultFS.
	envBPFFS = "WEIR_BPFFS"
	// settle is how long the leak check waits for a link whose peer's
	// namespace was closed: the kernel removes it in the background.
	settle = 3 * time.Second
)

// Need is a condition of a test beyond root and BPF.
type Need struct {
	name  string
	check func() error // nil error: met
}

// Tool needs a command that is found in PATH.
func Tool(name string) Need {
	return Need{name, func() error {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("the command %s is not in PATH; install it", name)
		}
		return nil
	}}
}

// File needs a file or directory, for instance /sys/kernel/btf/vmlinux.
func File(path string) Need {
	return Need{path, func() error {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%s is not there: %w", path, err)
		}
		return nil
	}}
}

// Env is what a kernel test owns until it ends.
type Env struct {
	// BPFRoot is the test's own directory under a bpffs. It must be empty at the end.
	BPFRoot string
	*Netns  // the namespace that the test runs in
}

// Kernel checks the needs, moves the calling goroutine into a new network
// namespace with lo up and makes a bpffs directory. When a need is missing the
// test is skipped with a sentence that names it, or fails if WEIR_KERNEL_TESTS=1.
// At the end of the test it reports links, pins and BPF descriptors that are
// still there, removes them and restores the thread.
func Kernel(t testing.TB, needs ...Need) *Env {
	t.Helper()
	root := os.Getenv(envBPFFS)
	if root == "" {
		root = bpf.DefaultFS
	}
	if err := missing(root); err != nil {
		leaveOut(t, err)
	}
	Needs(t, needs...)
	if err := bpf.GrowFDTable(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(root, "weir-test-")
	if err != nil {
		t.Fatalf("make the test's directory under the bpffs %s: %v", root, err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	before := descriptors(t)

	ns, err := newNetns()
	if err != nil {
		t.Fatal(err)
	}
	leave, err := ns.enter()
	if err != nil {
		ns.file.Close()
		t.Fatal(err)
	}
	env := &Env{BPFRoot: dir, Netns: ns}
	t.Cleanup(func() {
		t.Helper()
		checkLinks(t)
		checkPins(t, dir)
		checkDescriptors(t, before)
		if err := leave(); err != nil {
			t.Error(err)
		}
		ns.file.Close()
	})
	return env
}

// Needs skips a test whose needs the machine does not meet, or fails it if
// WEIR_KERNEL_TESTS=1.
func Needs(t testing.TB, needs ...Need) {
	t.Helper()
	for _, n := range needs {
		if err := n.check(); err != nil {
			leaveOut(t, err)
		}
	}
}

// leaveOut skips a test, or fails it where skips are not allowed. Tests do not skip otherwise.
func leaveOut(t testing.TB, why error) {
	t.Helper()
	if os.Getenv(envRequire) == "1" {
		t.Fatalf("the test cannot run: %v", why)
	}
	t.Skipf("skipped: %v", why)
}

// missing says what every kernel test needs and this machine does not have.
func missing(root string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("it needs root; run the tests with sudo")
	}
	if err := bpf.CheckFS(root); err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("it needs the right to create BPF maps (CAP_BPF, CAP_NET_ADMIN, and CAP_PERFMON for programs): %w", err)
	}
	m.Close()
	return nil
}

// checkLinks reports every link but lo in the calling thread's namespace.
func checkLinks(t testing.TB) {
	t.Helper()
	var left []string
	for end := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		links, err := netlink.LinkList()
		if err != nil {
			t.Errorf("list the links of the test's namespace: %v", err)
			return
		}
		left = left[:0]
		for _, l := range links {
			if l.Attrs().Name != "lo" {
				left = append(left, fmt.Sprintf("%s (%s)", l.Attrs().Name, l.Type()))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	t.Errorf("the test left links in its namespace: %s; delete them before it ends", strings.Join(left, ", "))
}

// checkPins reports pins in the test's directory. Empty directories are no leak.
func checkPins(t testing.TB, dir string) {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Errorf("walk the test's bpffs directory: %v", err)
	}
	if len(left) > 0 {
		t.Errorf("the test left pins in its bpffs directory: %s; unpin them before it ends", strings.Join(left, ", "))
	}
}

// checkDescriptors reports BPF descriptors that are open and were not before.
func checkDescriptors(t testing.TB, before map[string]string) {
	t.Helper()
	var left []string
	after := descriptors(t)
	for _, fd := range slices.Sorted(maps.Keys(after)) {
		if before[fd] != after[fd] {
			left = append(left, fd+" "+after[fd])
		}
	}
	if len(left) > 0 {
		t.Errorf("the test left BPF descriptors open: %s; close maps, programs and links before it ends", strings.Join(left, ", "))
	}
}

// descriptors lists this process's open BPF maps, programs and links: the kind
// and the kernel's id of each by descriptor number.
func descriptors(t testing.TB) map[string]string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("list open descriptors: %v", err)
	}
	open := map[string]string{}
	for _, e := range entries {
		kind, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the descriptor of the listing itself
		}
		kind = strings.TrimPrefix(kind, "anon_inode:")
		switch kind {
		case "bpf-map", "bpf-prog", "bpf_link":
			open[e.Name()] = kind + " " + objectID("/proc/self/fdinfo/"+e.Name())
		}
	}
	return open
}

// objectID reads the id line of a BPF descriptor's fdinfo; "" if it is gone.
func objectID(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		for _, field := range []string{"map_id:", "prog_id:", "link_id:"} {
			if id, ok := strings.CutPrefix(line, field); ok {
				return "id " + strings.TrimSpace(id)
			}
		}
	}
	return ""
}

// loopbackUp sets lo up in the calling thread's namespace.
func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo in a new network namespace: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up in a new network namespace: %w", err)
	}
	return nil
}

// threadNamespace opens the network namespace of the calling thread, which
// must be locked.
func threadNamespace() (*os.File, error) {
	f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return nil, fmt.Errorf("open the thread's network namespace: %w", err)
	}
	return f, nil
}
