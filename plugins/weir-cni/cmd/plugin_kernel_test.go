package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/testutils"
)

// node is a runtime on a node: libcni, the plugin's binary, an agent.
type node struct {
	*fakeAgent
	cni *libcni.CNIConfig
	bin string
}

func newNode(t *testing.T) *node {
	n := &node{fakeAgent: newAgent(t), bin: t.TempDir()}
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(n.bin, "weir-cni")))
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.bin}, t.TempDir(), nil)
	return n
}

// list is a network configuration of a version, with further keys of the plugin.
func (n *node) list(version string, more ...string) *libcni.NetworkConfigList {
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"weir","plugins":[{"type":"weir-cni","runDir":%q,"capabilities":{"ips":true,"mac":true}%s}]}`,
		version, n.runDir, strings.Join(append([]string{""}, more...), ","))
	l, err := libcni.ConfListFromBytes([]byte(text))
	require.NoError(n.t, err)
	return l
}

func runtimeConf(container string, ns *testutils.Netns, args ...[2]string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: ns.Path(), IfName: "eth0",
		Args: append([][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"}, {"K8S_POD_UID", "uid-1"}, {"K8S_POD_INFRA_CONTAINER_ID", "infra"}}, args...)}
}

// links names the links of the calling thread's namespace but lo.
func links(t *testing.T) (out []string) {
	all, err := netlink.LinkList()
	require.NoError(t, err)
	for _, l := range all {
		if l.Attrs().Name != "lo" {
			out = append(out, l.Attrs().Name)
		}
	}
	return out
}

func requireNothing(t *testing.T, n *node, pod *testutils.Netns, when string) {
	t.Helper()
	require.Empty(t, n.left(), when)
	require.Empty(t, links(t), when)
	pod.Do(t, func() { require.Empty(t, links(t), when) })
}

func cniCode(t *testing.T, err error) (uint, string) {
	t.Helper()
	var e *types.Error
	require.True(t, errors.As(err, &e), "%v is no CNI error", err)
	return e.Code, e.Msg + " | " + e.Details
}

func TestAddCheckDelInEveryVersion(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		list, rt := n.list(version), runtimeConf("c-"+version, pod)
		raw, err := n.cni.AddNetworkList(t.Context(), list, rt)
		require.NoError(t, err, version)
		require.Equal(t, version, raw.Version())
		res, err := types100.GetResult(raw)
		require.NoError(t, err)
		require.Len(t, res.Interfaces, 2)
		require.Equal(t, link.HostName("c-"+version, "eth0"), res.Interfaces[0].Name)
		require.Equal(t, "eth0", res.Interfaces[1].Name)
		require.Equal(t, pod.Path(), res.Interfaces[1].Sandbox)
		require.Equal(t, version == "1.1.0", res.Interfaces[1].Mtu == 1450)
		require.Len(t, res.IPs, 2)
		require.Equal(t, "169.254.1.1", res.IPs[0].Gateway.String())
		require.Equal(t, "fe80::1", res.IPs[1].Gateway.String())
		require.Len(t, res.Routes, 2)
		requirePod(t, pod, res)

		last := n.requests[len(n.requests)-1]
		require.Equal(t, [4]string{"shop", "web", "uid-1", "infra"}, [4]string{last.PodNamespace, last.PodName, last.PodUID, last.InfraContainer})
		require.True(t, last.Sync)
		require.Equal(t, 1450, last.MTU)
		require.Equal(t, "c-"+version+":eth0", n.asked[len(n.asked)-1].Owner)
		require.True(t, n.asked[len(n.asked)-1].Expires)

		if version != "0.3.1" { // CHECK came with 0.4.0
			require.NoError(t, n.cni.CheckNetworkList(t.Context(), list, rt), version)
		}
		require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt), version)
		requireNothing(t, n, pod, version)
		require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt), "DEL twice, "+version)
	}
}

// requirePod compares the pod's side with the result: addresses, routes, MTU,
// up without a carrier, the node's end down.
func requirePod(t *testing.T, pod *testutils.Netns, res *types100.Result) {
	t.Helper()
	host, err := link.ByName(res.Interfaces[0].Name)
	require.NoError(t, err)
	require.False(t, host.Up, "only the agent may set the node's end up")
	pod.Do(t, func() {
		dev, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		require.NotZero(t, dev.Attrs().Flags&net.FlagUp)
		require.Zero(t, dev.Attrs().RawFlags&unix.IFF_LOWER_UP, "there is a carrier before the agent is done")
		require.Equal(t, res.Interfaces[1].Mac, dev.Attrs().HardwareAddr.String())
		require.Equal(t, 1450, dev.Attrs().MTU)
		for _, ip := range res.IPs {
			family := netlink.FAMILY_V4
			if ip.Address.IP.To4() == nil {
				family = netlink.FAMILY_V6
			}
			have, err := netlink.AddrList(dev, family)
			require.NoError(t, err)
			require.Contains(t, fmt.Sprint(have), ip.Address.String())
			routes, err := netlink.RouteList(dev, family)
			require.NoError(t, err)
			require.Contains(t, fmt.Sprint(routes), ip.Gateway.String())
		}
	})
}

func TestAddTwiceReturnsTheSameAttachment(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.0.0"), runtimeConf("twice", pod)
	first, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	again, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	require.Equal(t, asText(t, first), asText(t, again))
	require.Len(t, n.Endpoints(), 1)
	require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt))
	requireNothing(t, n, pod, "after DEL")
}

func asText(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

func TestAnInterfaceOfSomebodyElseIsLeftAlone(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	pod.Do(t, func() {
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "theirs"}))
	})
	_, err := n.cni.AddNetworkList(t.Context(), n.list("1.1.0"), runtimeConf("foreign", pod))
	code, text := cniCode(t, err)
	require.Equal(t, types.ErrInvalidEnvironmentVariables, code)
	require.Contains(t, text, "not made by weir-cni")
	require.Empty(t, n.left())
	pod.Do(t, func() {
		require.ElementsMatch(t, []string{"eth0", "theirs"}, links(t))
		require.NoError(t, link.Delete("theirs"))
	})
	require.Empty(t, links(t))
}

func TestRequestedAddressesFamiliesAndLabelsReachTheAgent(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	n.families = "4"
	pod := testutils.NewNetns(t)
	list := n.list("1.0.0", `"mtu":1300`, `"pool":"blue"`, `"args":{"cni":{"labels":[{"key":"app","value":"web"}]}}`)
	rt := runtimeConf("wishes", pod)
	rt.CapabilityArgs = map[string]any{"ips": []string{"10.9.0.200/24"}}
	raw, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	res, err := types100.GetResult(raw)
	require.NoError(t, err)
	require.Equal(t, "10.9.0.200/32", res.IPs[0].Address.String())
	require.Len(t, res.IPs, 1)
	require.Len(t, res.Routes, 1)
	require.Equal(t, "blue", n.asked[0].Pool)
	require.Equal(t, map[string]string{"app": "web"}, n.requests[0].Labels)
	pod.Do(t, func() {
		dev, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		require.Equal(t, 1300, dev.Attrs().MTU)
	})
	require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt))
	requireNothing(t, n, pod, "after DEL")
}

func TestAFailedAddLeavesNothingAndNamesTheStation(t *testing.T) {
	testutils.Kernel(t)
	for name, c := range map[string]struct {
		prepare  func(*node)
		smallMTU bool
		code     uint
		text     []string
	}{
		"the pool is exhausted": {prepare: func(n *node) { n.failLease = exhausted() }, code: types.ErrTryAgainLater,
			text: []string{"station ipam.lease", "pool default exhausted: 254 of 254", "enlarge the pool"}},
		"the link cannot be built": {prepare: func(*node) {}, smallMTU: true, code: types.ErrInternal, text: []string{"station link.build", "configure eth0 in the pod"}},
		"the endpoint is not ready in time": {prepare: func(n *node) {
			n.fail = &v1.Error{Code: v1.CodeTimeout, Text: "gave up", Next: "look at the log", LastStation: "policy.resolve", WaitingFor: "load"}
		}, code: types.ErrTryAgainLater, text: []string{"last finished station policy.resolve, waiting for load", "look at the log"}},
		"the agent refuses": {prepare: func(n *node) { n.fail = errors.New("verifier says no") }, code: types.ErrInternal, text: []string{"verifier says no"}},
		"the agent is down": {prepare: func(n *node) { n.stop() }, code: types.ErrTryAgainLater, text: []string{"station cni.add", "not running", "start weir-agent"}},
	} {
		func() { // not a subtest: its goroutine would be in another namespace
			n := newNode(t)
			pod := testutils.NewNetns(t)
			c.prepare(n)
			var more []string
			if c.smallMTU {
				n.families, more = "6", []string{`"mtu":68`} // IPv6 needs 1280 (RFC 8200)
			}
			_, err := n.cni.AddNetworkList(t.Context(), n.list("1.1.0", more...), runtimeConf("broken", pod))
			code, text := cniCode(t, err)
			require.Equal(t, c.code, code, text)
			for _, part := range c.text {
				require.Contains(t, text, part)
			}
			requireNothing(t, n, pod, name)
		}()
	}
}

func TestCheckSeesWhatWasTamperedWith(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.1.0"), runtimeConf("tampered", pod)
	raw, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	res, err := types100.GetResult(raw)
	require.NoError(t, err)
	check := func() (uint, string) { return cniCode(t, n.cni.CheckNetworkList(t.Context(), list, rt)) }

	n.health.Overall, n.health.Message = gen.StateFailing, "no programs"
	code, text := check()
	require.Equal(t, uint(codeUnhealthy), code)
	require.Contains(t, text, "no programs")
	n.health.Overall = gen.StateOk

	n.stop()
	code, _ = check()
	require.Equal(t, uint(codeHealthQuery), code)
	n.start()

	pod.Do(t, func() {
		dev, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		require.NoError(t, netlink.AddrDel(dev, &netlink.Addr{IPNet: &res.IPs[0].Address}))
		require.NoError(t, netlink.LinkSetHardwareAddr(dev, net.HardwareAddr{2, 1, 2, 3, 4, 5}))
	})
	code, text = check()
	require.Equal(t, uint(codeDiffers), code)
	require.Contains(t, text, res.IPs[0].Address.IP.String())
	require.Contains(t, text, "02:01:02:03:04:05")

	require.NoError(t, link.Delete(res.Interfaces[0].Name))
	code, text = check()
	require.Equal(t, uint(codeDiffers), code)
	require.Contains(t, text, "no interface")
	require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt))
	requireNothing(t, n, pod, "after DEL")
}

func TestStatusAndGC(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	list := n.list("1.1.0")
	require.NoError(t, n.cni.GetStatusNetworkList(t.Context(), list))
	n.ready = false
	code, text := cniCode(t, n.cni.GetStatusNetworkList(t.Context(), list))
	require.Equal(t, types.ErrPluginNotAvailable, code)
	require.Contains(t, text, "datapath is not loaded")
	require.Contains(t, text, "wait for clang")
	n.ready = true

	keep, gone := testutils.NewNetns(t), testutils.NewNetns(t)
	for container, ns := range map[string]*testutils.Netns{"keep": keep, "gone": gone} {
		_, err := n.cni.AddNetworkList(t.Context(), list, runtimeConf(container, ns))
		require.NoError(t, err)
	}
	// A runtime that lost its cache asks with another one.
	fresh := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, t.TempDir(), nil)
	require.NoError(t, fresh.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "keep", IfName: "eth0"}}}))
	require.Equal(t, "endpoint keep:eth0, lease keep:eth0", n.left())
	require.Equal(t, []string{link.HostName("keep", "eth0")}, links(t))
	require.NoError(t, n.cni.DelNetworkList(t.Context(), list, runtimeConf("keep", keep)))
	requireNothing(t, n, keep, "after DEL")

	n.stop()
	code, text = cniCode(t, n.cni.GetStatusNetworkList(t.Context(), list))
	require.Equal(t, types.ErrPluginNotAvailable, code)
	require.Contains(t, text, "not running")
}

// TestB37DelIsTolerant runs the entry's test: agent stopped, namespace missing,
// no namespace, DEL twice, unknown container. The cleaning up at the agent's
// start is the agent's part; here the queued request is read back.
func TestB37DelIsTolerant(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.1.0"), runtimeConf("tolerant", pod)
	del := func(rt *libcni.RuntimeConf, when string) {
		require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt), when)
	}
	del(runtimeConf("never-seen", pod), "unknown container")
	_, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	noPath, empty := *rt, *rt
	noPath.NetNS, empty.NetNS = "/run/netns/weir-is-gone", ""
	del(&noPath, "namespace missing")
	requireNothing(t, n, pod, "namespace missing")
	del(&empty, "no namespace")

	_, err = n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	n.stop()
	for _, when := range []string{"agent stopped", "agent stopped, again"} {
		del(rt, when)
		require.Empty(t, links(t), when)
	}
	files, err := filepath.Glob(filepath.Join(n.runDir, v1.QueueDir, "*"+v1.QueueSuffix))
	require.NoError(t, err)
	require.Len(t, files, 1)
	var q v1.QueuedDelete
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &q))
	require.NoError(t, q.Check())
	require.Equal(t, [2]string{"tolerant", "eth0"}, [2]string{q.ContainerID, q.Interface})
	require.Equal(t, "endpoint tolerant:eth0, lease tolerant:eth0", n.left())
	n.start()
	del(rt, "agent back")
	requireNothing(t, n, pod, "agent back")
}

// TestB38AKilledAddIsCleanedUpByDel kills the plugin at each of its steps; the
// links, leases and endpoints are afterwards those from before.
func TestB38AKilledAddIsCleanedUpByDel(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.0.0"), runtimeConf("killed", pod)
	for _, step := range []string{"before create", "after create", "after configure", "while the agent builds", "endpoint made, no answer read"} {
		for _, after := range []string{"DEL", "ADD again"} {
			n.kill(t, step, rt)
			if after == "ADD again" { // a runtime that does not call DEL first
				_, err := n.cni.AddNetworkList(t.Context(), list, rt)
				require.NoError(t, err, step)
			}
			require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt), step)
			requireNothing(t, n, pod, step+", then "+after)
		}
	}
}

// kill runs ADD and kills it at the step: at one on links it kills itself, at
// one of the agent the agent does it.
func (n *node) kill(t *testing.T, step string, rt *libcni.RuntimeConf) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(n.bin, "weir-cni"))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + rt.ContainerID, "CNI_NETNS=" + rt.NetNS, "CNI_IFNAME=" + rt.IfName, "CNI_PATH=" + n.bin,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=uid-1", envKill + "=" + step}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"weir","type":"weir-cni","runDir":%q}`, n.runDir))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	killed := make(chan struct{})
	asked := make(chan struct{})
	switch step {
	case "while the agent builds", "endpoint made, no answer read":
		n.onPut = func(string) {
			close(asked)
			<-killed
		}
		defer func() { n.onPut = nil }()
	default:
		close(asked)
	}
	require.NoError(t, cmd.Start())
	wait := make(chan error, 1)
	if n.onPut != nil {
		<-asked
		if step == "while the agent builds" {
			require.NoError(t, cmd.Process.Kill())
			wait <- cmd.Wait()
			close(killed)
			n.settle()
		} else {
			require.NoError(t, cmd.Process.Signal(unix.SIGSTOP)) // it never reads the answer
			close(killed)
			n.settle()
			require.NoError(t, cmd.Process.Kill())
			wait <- cmd.Wait()
		}
	} else {
		wait <- cmd.Wait()
	}
	var exit *exec.ExitError
	require.ErrorAs(t, <-wait, &exit, out.String())
	require.Equal(t, "signal: killed", exit.ProcessState.String(), out.String())
}

// settle waits until the agent has made the endpoint of the killed ADD.
func (n *node) settle() {
	require.Eventually(n.t, func() bool { return len(n.Endpoints()) > 0 }, 5*time.Second, time.Millisecond)
}

func TestBadInputIsRefusedWithTheField(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	other, err := os.Open("/proc/self/ns/uts")
	require.NoError(t, err)
	defer other.Close()
	for name, c := range map[string]struct {
		more   string
		change func(*libcni.RuntimeConf)
		code   uint
		text   string
	}{
		"prevResult":              {more: `"prevResult":{"cniVersion":"1.1.0"}`, code: types.ErrInvalidNetworkConfig, text: "field prevResult"},
		"a wrong type":            {more: `"mtu":"big"`, code: types.ErrInvalidNetworkConfig, text: "field mtu"},
		"an MTU out of range":     {more: `"mtu":7`, code: types.ErrInvalidNetworkConfig, text: "field mtu"},
		"a delegated ipam":        {more: `"ipam":{"type":"host-local"}`, code: types.ErrInvalidNetworkConfig, text: "field ipam.type"},
		"a relative path":         {more: `"logFile":"x.log"`, code: types.ErrInvalidNetworkConfig, text: "field logFile"},
		"an unknown CNI argument": {change: func(r *libcni.RuntimeConf) { r.Args = [][2]string{{"COLOUR", "red"}} }, code: types.ErrInvalidEnvironmentVariables, text: "COLOUR"},
		"a missing namespace":     {change: func(r *libcni.RuntimeConf) { r.NetNS = "/run/netns/weir-not-there" }, code: types.ErrInvalidNetNS, text: "weir-not-there"},
		"a file":                  {change: func(r *libcni.RuntimeConf) { r.NetNS = file }, code: types.ErrInvalidNetNS, text: "no namespace"},
		"another namespace kind": {change: func(r *libcni.RuntimeConf) {
			r.NetNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), other.Fd())
		}, code: types.ErrInvalidNetNS, text: "another kind"},
		"the node's own namespace": {change: func(r *libcni.RuntimeConf) {
			r.NetNS = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		}, code: types.ErrInvalidNetNS, text: "node's own"},
		"an address in CNI_ARGS": {change: func(r *libcni.RuntimeConf) { r.Args = append(r.Args, [2]string{"IP", "10.9.0.300"}) }, code: types.ErrInvalidEnvironmentVariables, text: "IP: "},
		"a group MAC address":    {change: func(r *libcni.RuntimeConf) { r.Args = append(r.Args, [2]string{"MAC", "01:02:03:04:05:06"}) }, code: types.ErrInvalidEnvironmentVariables, text: "MAC: "},
		"two addresses of a family": {change: func(r *libcni.RuntimeConf) {
			r.CapabilityArgs = map[string]any{"ips": []string{"10.0.0.1", "10.0.0.2"}}
		}, code: types.ErrInvalidNetworkConfig, text: "runtimeConfig.ips[1]"},
	} {
		func() { // not a subtest: its goroutine would be in another namespace
			var more []string
			if c.more != "" {
				more = append(more, c.more)
			}
			rt := runtimeConf("bad", pod)
			if c.change != nil {
				c.change(rt)
			}
			_, err := n.cni.AddNetworkList(t.Context(), n.list("1.1.0", more...), rt)
			code, text := cniCode(t, err)
			require.Equal(t, c.code, code, name+": "+text)
			require.Contains(t, text, c.text, name)
			require.Empty(t, n.left(), name)
		}()
	}
}
