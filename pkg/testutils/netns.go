package testutils

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Netns is a network namespace that lives as long as its descriptor is open.
type Netns struct {
	file *os.File
}

// NewNetns makes an unnamed network namespace with lo up, for instance that of
// a pod. It is closed when the test ends; its links go with it.
func NewNetns(t testing.TB) *Netns {
	t.Helper()
	ns, err := newNetns()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.file.Close() })
	return ns
}

// newNetns makes the namespace on a thread that it returns clean or not at all.
func newNetns() (*Netns, error) {
	runtime.LockOSThread()
	origin, err := threadNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer origin.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	file, err := threadNamespace()
	if err == nil {
		err = loopbackUp()
	}
	if back := unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked and dies with the goroutine.
		err = errors.Join(err, fmt.Errorf("return to the former network namespace: %w", back))
	} else {
		runtime.UnlockOSThread()
	}
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, err
	}
	return &Netns{file}, nil
}

// FD is the namespace's descriptor, for netlink calls that move or create a link in it.
func (n *Netns) FD() int { return int(n.file.Fd()) }

// Path names the namespace for other processes of root, for instance as
// CNI_NETNS or for nsenter --net=. It is valid until the test ends.
func (n *Netns) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// Do runs fn on the calling goroutine inside the namespace and returns to the
// former one, also when fn ends the test. Goroutines that fn starts are not inside.
func (n *Netns) Do(t testing.TB, fn func()) {
	t.Helper()
	leave, err := n.enter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := leave(); err != nil {
			t.Error(err)
		}
	}()
	fn()
}

// enter locks the thread and moves it into n. leave moves it back and unlocks
// it; when that fails the thread stays locked and dies with the goroutine.
func (n *Netns) enter() (leave func() error, err error) {
	runtime.LockOSThread()
	origin, err := threadNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		origin.Close()
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter the test's network namespace: %w", err)
	}
	return func() error {
		defer origin.Close()
		if err := unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("return to the former network namespace: %w", err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}

// VethPair makes a veth pair with one end in the caller's namespace and the
// other in peer, sets both up and deletes the pair when the test ends.
func VethPair(t testing.TB, name string, peer *Netns, peerName string) netlink.Link {
	t.Helper()
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name, Flags: net.FlagUp},
		PeerName:      peerName,
		PeerNamespace: netlink.NsFd(peer.FD()),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatalf("make the veth pair %s, %s: %v", name, peerName, err)
	}
	t.Cleanup(func() {
		err := netlink.LinkDel(veth)
		var gone netlink.LinkNotFoundError
		if err != nil && !errors.As(err, &gone) && !errors.Is(err, unix.ENODEV) {
			t.Errorf("delete the veth pair %s: %v", name, err)
		}
	})
	host, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	peer.Do(t, func() {
		l, err := netlink.LinkByName(peerName)
		if err != nil {
			t.Fatalf("find %s in the peer's namespace: %v", peerName, err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatalf("set %s up: %v", peerName, err)
		}
	})
	return host
}
