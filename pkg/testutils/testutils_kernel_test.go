package testutils

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// recorder takes the failures of a leak check instead of the test.
type recorder struct {
	testing.TB
	text []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.text = append(r.text, format)
	r.TB.Logf("expected: "+format, args...)
}

func TestANeedThatIsMissingIsNamed(t *testing.T) {
	for _, n := range []Need{Tool("weir-no-such-command"), File("/no/such/file")} {
		err := n.check()
		if err == nil || !strings.Contains(err.Error(), n.name) {
			t.Errorf("need %s: got %v, want an error that names it", n.name, err)
		}
	}
	if err := Tool("sh").check(); err != nil {
		t.Errorf("sh is there, but: %v", err)
	}
}

func TestKernelGivesANamespaceAndADirectory(t *testing.T) {
	outside := namespaceInode(t)
	var dir string
	t.Run("inside", func(t *testing.T) {
		env := Kernel(t)
		dir = env.BPFRoot
		if namespaceInode(t) == outside {
			t.Fatal("the test runs in the machine's namespace")
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil || lo.Attrs().RawFlags&unix.IFF_UP == 0 {
			t.Fatalf("lo is not up: %v", err)
		}
		m := newMap(t)
		defer m.Close()
		if err := m.Pin(filepath.Join(env.BPFRoot, "pin")); err != nil {
			t.Fatal(err)
		}
		if err := m.Unpin(); err != nil {
			t.Fatal(err)
		}
	})
	if dir == "" {
		t.Skip("the machine cannot run kernel tests")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory %s outlived the test: %v", dir, err)
	}
	if namespaceInode(t) != outside {
		t.Error("the thread came back dirty")
	}
}

func TestPodNamespacesTalkOverAVethPair(t *testing.T) {
	env := Kernel(t)
	pod := NewNetns(t)
	host := VethPair(t, "host0", pod, "eth0")
	if host.Attrs().Name != "host0" {
		t.Fatalf("host end is %s", host.Attrs().Name)
	}
	inEnv, inPod := namespaceInode(t), uint64(0)
	pod.Do(t, func() {
		inPod = namespaceInode(t)
		l, err := netlink.LinkByName("eth0")
		if err != nil || l.Attrs().OperState != netlink.OperUp {
			t.Errorf("eth0 in the pod is not up: %v %v", l, err)
		}
	})
	if inEnv == inPod || namespaceInode(t) != inEnv {
		t.Error("Do did not change the namespace for its function only")
	}
	var st unix.Stat_t
	if err := unix.Stat(pod.Path(), &st); err != nil || st.Ino != inPod {
		t.Errorf("Path names another namespace: %v", err)
	}
	env.Do(t, func() {}) // nesting is harmless
}

func TestALeakIsReported(t *testing.T) {
	env := Kernel(t)
	before := descriptors(t)
	m := newMap(t)
	pin := filepath.Join(env.BPFRoot, "left")
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	checkPins(r, env.BPFRoot)
	checkDescriptors(r, before)
	if err := os.Remove(pin); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if len(r.text) != 2 {
		t.Errorf("a pin and an open map were left, reported: %q", r.text)
	}
	clean := &recorder{TB: t}
	checkPins(clean, env.BPFRoot)
	checkDescriptors(clean, before)
	checkLinks(clean)
	if len(clean.text) != 0 {
		t.Errorf("nothing was left, reported: %q", clean.text)
	}
}

func TestALeftLinkIsReported(t *testing.T) {
	Kernel(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "left0"}, PeerName: "left1"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	checkLinks(r)
	if err := netlink.LinkDel(veth); err != nil {
		t.Fatal(err)
	}
	if len(r.text) != 1 {
		t.Errorf("a link was left, reported: %q", r.text)
	}
}

func newMap(t *testing.T) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// namespaceInode identifies the calling thread's namespace.
func namespaceInode(t *testing.T) uint64 {
	t.Helper()
	f, err := threadNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
