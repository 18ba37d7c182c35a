package node

import (
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/test/box"
)

// inside runs a shell command in a namespace and returns what it printed.
func inside(t *testing.T, ns lab.Netns, command string) string {
	t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

// warnings are the lines of the status with a code.
func warnings(t *testing.T, b *box.Box, code string) []gen.Component {
	t.Helper()
	s, err := b.Agent.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(s.Components, func(c gen.Component) bool { return c.Name != code || c.State == gen.StateOk })
}

// warning returns the first of them; false if there is none.
func warning(t *testing.T, b *box.Box, code string) (gen.Component, bool) {
	t.Helper()
	if found := warnings(t, b, code); len(found) > 0 {
		return found[0], true
	}
	return gen.Component{}, false
}

// warned waits for a line of the status whose message has a text.
func warned(t *testing.T, b *box.Box, code, text string) (c gen.Component) {
	t.Helper()
	b.Eventually(fmt.Sprintf("status says %s: %s", code, text), func() bool {
		var ok bool
		c, ok = warning(t, b, code)
		return ok && strings.Contains(c.Message, text)
	})
	return c
}

func notWarned(t *testing.T, b *box.Box, code string) {
	t.Helper()
	b.Eventually("status says nothing of "+code, func() bool {
		_, ok := warning(t, b, code)
		return !ok
	})
}

// agentCommand is the agent with the box's settings and others, in the node's namespace.
func agentCommand(t *testing.T, b *box.Box, verb string, more ...string) *exec.Cmd {
	var args []string
	if verb != "" {
		args = append(args, verb)
	}
	return exec.CommandContext(t.Context(), b.Record.Agent, append(append(args, b.Record.AgentArgs...), more...)...)
}

// cleanNode stops the agent and lets it clean up.
func cleanNode(t *testing.T, b *box.Box) {
	t.Helper()
	if err := b.StopAgent(); err != nil {
		t.Fatal(err)
	}
	if code, out := run(t, b, agentCommand(t, b, "cleanup")); code != 0 {
		t.Fatalf("cleanup: exit code %d: %s", code, out)
	}
}

// advertise sends a router's advertisement from a host's eth0.
func advertise(t *testing.T, host lab.Netns) {
	t.Helper()
	ra := &layers.ICMPv6RouterAdvertisement{HopLimit: 64, RouterLifetime: 1800}
	buf := gopacket.NewSerializeBuffer()
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeRouterAdvertisement, 0)}
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, icmp, ra); err != nil {
		t.Fatal(err)
	}
	err := host.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		return unix.Sendto(fd, buf.Bytes(), 0, &unix.SockaddrInet6{ZoneId: uint32(eth0.Index), Addr: [16]byte{0xff, 2, 15: 1}})
	})
	if err != nil && err != unix.EADDRNOTAVAIL { // its link-local address is not there yet
		t.Fatal(err)
	}
}

// leaseOf asks for one address.
func leaseOf(addr string) gen.IPAMRequest {
	return gen.IPAMRequest{Owner: "someone:" + addr, Requested: []string{addr}, Expires: true}
}
