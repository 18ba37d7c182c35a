package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Netns is the path of a file that a network namespace is bound to.
type Netns string

// NewNetns makes a network namespace with its loopback up and binds it to a new file at path.
func NewNetns(path string) (Netns, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return "", fmt.Errorf("making the file of a network namespace: %w", err)
	}
	file.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w (it needs root)", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding a network namespace to %s: %w", path, err)
		}
		return loopbackUp()
	})
	if err != nil {
		return "", errors.Join(err, Netns(path).Remove())
	}
	return Netns(path), nil
}

// Do runs fn on a thread that is inside the namespace. Sockets that fn opens
// and processes that it starts stay there.
func (n Netns) Do(fn func() error) error {
	ns, err := netns.GetFromPath(string(n))
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", n, err)
	}
	defer ns.Close()
	return onThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("entering network namespace %s: %w", n, err)
		}
		return fn()
	})
}

// Remove unbinds the namespace and removes its file; what is gone already is fine.
func (n Netns) Remove() error {
	err := unix.Unmount(string(n), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unbinding network namespace %s: %w", n, err)
	}
	if err := os.Remove(string(n)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// onThread runs fn on a thread of its own, which dies if it cannot be brought
// back to the namespace it came from.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("reading this thread's network namespace: %w", err)
			return
		}
		defer home.Close()
		err = fn()
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
