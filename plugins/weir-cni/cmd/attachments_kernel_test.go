package cmd

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/testutils"
)

// network is a list of another name.
func (n *node) network(name string, more string) *libcni.NetworkConfigList {
	text := `{"cniVersion":"1.1.0","name":"` + name + `","plugins":[{"type":"weir-cni","runDir":"` + n.runDir + `"` + more + `}]}`
	l, err := libcni.ConfListFromBytes([]byte(text))
	require.NoError(n.t, err)
	return l
}

func TestN20GCOfOneNetworkLeavesTheOthersAlone(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	red, blue := n.network("red", ""), n.network("blue", "")
	for container, list := range map[string]*libcni.NetworkConfigList{"r1": red, "r2": red, "b1": blue, "old": blue} {
		_, err := n.cni.AddNetworkList(t.Context(), list, runtimeConf(container, testutils.NewNetns(t)))
		require.NoError(t, err)
	}
	noted := n.endpoints["old:eth0"]
	noted.Network = "" // the record of a former build
	n.endpoints["old:eth0"] = noted
	gc := func(list *libcni.NetworkConfigList, args *libcni.GCArgs) error {
		fresh := libcni.NewCNIConfigWithCacheDir([]string{n.bin}, t.TempDir(), nil)
		return fresh.GCNetworkList(t.Context(), list, args)
	}
	all := "endpoint b1:eth0, endpoint old:eth0, endpoint r1:eth0, endpoint r2:eth0, lease b1:eth0, lease old:eth0, lease r1:eth0, lease r2:eth0"
	require.NoError(t, gc(red, nil), "absent")
	require.NoError(t, gc(red, &libcni.GCArgs{}), "libcni writes null for a nil list")
	require.Equal(t, all, n.left())
	for _, wrong := range []string{`,"cni.dev/valid-attachments":{}`, `,"cni.dev/attachments":"all"`, `,"cni.dev/valid-attachments":[{"containerID":"r1"}]`} {
		c, err := parseConfig([]byte(`{"cniVersion":"1.1.0","name":"red"` + wrong + "}"))
		require.NoError(t, err, "no business of the other verbs")
		_, _, err = c.valid()
		require.ErrorContains(t, err, "field cni.dev/", wrong)
	}

	require.NoError(t, gc(n.network("red", `,"cni.dev/attachments":[{"containerID":"r1","ifname":"eth0"}]`), nil), "the old spelling")
	require.Equal(t, "endpoint b1:eth0, endpoint old:eth0, endpoint r1:eth0, lease b1:eth0, lease old:eth0, lease r1:eth0", n.left())
	require.NoError(t, gc(red, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}))
	require.Equal(t, "endpoint b1:eth0, endpoint old:eth0, lease b1:eth0, lease old:eth0", n.left())
	require.NoError(t, gc(blue, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}))
	require.Equal(t, "endpoint old:eth0, lease old:eth0", n.left(), "a network that is not known is nobody's")
}

func TestN20CheckNotesTheNetworkOfAFormerBuild(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	list, rt := n.network("red", ""), runtimeConf("old", testutils.NewNetns(t))
	_, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	e := n.endpoints["old:eth0"]
	require.Equal(t, "red", e.Network)
	e.Network = ""
	n.endpoints["old:eth0"] = e
	require.NoError(t, n.cni.CheckNetworkList(t.Context(), list, rt))
	require.Equal(t, "red", n.endpoints["old:eth0"].Network)
}

func TestN21AnAddAfterTheLinkWentIsOfTheNewLink(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.0.0"), runtimeConf("again", pod)
	_, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	pod.Do(t, func() { require.NoError(t, link.Delete("eth0")) })
	raw, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	res, err := types100.GetResult(raw)
	require.NoError(t, err)
	host, err := link.ByName(res.Interfaces[0].Name)
	require.NoError(t, err)
	require.Equal(t, host.Index, n.endpoints["again:eth0"].Interface.HostIndex)
	pod.Do(t, func() {
		dev, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		require.Equal(t, res.Interfaces[1].Mac, dev.Attrs().HardwareAddr.String())
	})
}

func TestN21ALivingAttachmentSurvivesAnAddThatFails(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod, other := testutils.NewNetns(t), testutils.NewNetns(t)
	list := n.list("1.0.0")
	_, err := n.cni.AddNetworkList(t.Context(), list, runtimeConf("living", pod))
	require.NoError(t, err)
	before, left, had := n.endpoints["living:eth0"], n.left(), links(t)
	still := func(when string) {
		require.Equal(t, before, n.endpoints["living:eth0"], when)
		require.Equal(t, left, n.left(), when)
		require.Equal(t, had, links(t), when)
		pod.Do(t, func() { require.Equal(t, []string{"eth0"}, links(t), when) })
	}
	_, err = n.cni.AddNetworkList(t.Context(), list, runtimeConf("living", other))
	require.ErrorContains(t, err, "nothing was changed")
	still("a new namespace")
	other.Do(t, func() { require.Empty(t, links(t)) })

	n.fail = exhausted()
	_, err = n.cni.AddNetworkList(t.Context(), list, runtimeConf("living", pod))
	require.Error(t, err)
	still("the agent refuses")
	n.fail = nil

	rt := runtimeConf("living", pod)
	rt.CapabilityArgs = map[string]any{"ips": []string{"10.9.0.77"}}
	_, err = n.cni.AddNetworkList(t.Context(), list, rt)
	require.Error(t, err)
	still("another address is asked for")
}

func TestN22AnEndpointThatRegeneratesIsReadyEnough(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	n.state = gen.EndpointWaitingToRegenerate
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.0.0"), runtimeConf("busy", pod)
	first, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	again, err := n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err, "the same request, while it regenerates")
	require.Equal(t, asText(t, first), asText(t, again))
}

func TestN23AddWaitsForAnAgentThatStarts(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	list, rt := n.list("1.1.0"), runtimeConf("patient", pod)
	n.stop()
	hold, err := api.HoldRunDir(n.runDir)
	require.NoError(t, err)
	_, err = api.HoldRunDir(n.runDir)
	require.ErrorContains(t, err, "in use by another agent")
	back := time.AfterFunc(6*time.Second, n.start) // longer than without a process
	defer back.Stop()
	require.Error(t, n.cni.GetStatusNetworkList(t.Context(), list), "STATUS does not wait")
	_, err = n.cni.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt))

	n.stop()
	_, err = n.cni.AddNetworkList(t.Context(), n.list("1.1.0", `"agentWaitSeconds":1`), rt)
	code, text := cniCode(t, err)
	require.Equal(t, types.ErrTryAgainLater, code)
	require.Contains(t, text, "still starting")
	require.NoError(t, hold.Close())
	_, err = n.cni.AddNetworkList(t.Context(), list, rt)
	_, text = cniCode(t, err)
	require.Contains(t, text, "weir-agent is not running")
	require.Contains(t, text, "systemctl start weir-agent")
	requireNothing(t, n, pod, "after the failures but what was queued")
}

func TestN40ContainersOfPodmanAreAttachedAsTheyAsk(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	for name, args := range map[string][][2]string{
		"a name alone":       {{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web"}},
		"an empty namespace": {{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", ""}, {"K8S_POD_NAME", "web"}},
		"nothing":            nil,
		"no sandbox, no UID": {{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"}},
	} {
		pod := testutils.NewNetns(t)
		rt := &libcni.RuntimeConf{ContainerID: "podman", NetNS: pod.Path(), IfName: "eth0",
			Args: append(args, [2]string{"IP", "10.9.0.50"}, [2]string{"MAC", "02:00:00:00:00:42"})}
		list := n.list("1.0.0")
		raw, err := n.cni.AddNetworkList(t.Context(), list, rt)
		require.NoError(t, err, name)
		require.True(t, n.requests[len(n.requests)-1].Standalone, name)
		res, err := types100.GetResult(raw)
		require.NoError(t, err)
		require.Equal(t, "10.9.0.50/32", res.IPs[0].Address.String(), name)
		require.Equal(t, "02:00:00:00:00:42", res.Interfaces[1].Mac, name)
		requirePod(t, pod, res)
		require.NoError(t, n.cni.DelNetworkList(t.Context(), list, rt))
	}
	_, err := n.cni.AddNetworkList(t.Context(), n.list("1.0.0"), runtimeConf("pod", testutils.NewNetns(t)))
	require.NoError(t, err)
	require.False(t, n.requests[len(n.requests)-1].Standalone)
}

// What a runtime with Debian's plugins does: CHECK with the result of the chain.
func TestN21CheckTakesTheResultOfAChain(t *testing.T) {
	testutils.Kernel(t)
	n := newNode(t)
	pod := testutils.NewNetns(t)
	chained := libcni.NewCNIConfigWithCacheDir([]string{n.bin, "/usr/lib/cni"}, t.TempDir(), nil)
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "chain", "plugins": []any{
		map[string]any{"type": "weir-cni", "runDir": n.runDir},
		map[string]any{"type": "tuning", "sysctl": map[string]string{"net.ipv4.conf.eth0.arp_filter": "1"}},
		map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
	}})
	require.NoError(t, err)
	list, err := libcni.ConfListFromBytes(text)
	require.NoError(t, err)
	rt := runtimeConf("chain", pod)
	_, err = chained.AddNetworkList(t.Context(), list, rt)
	require.NoError(t, err)
	require.NoError(t, chained.CheckNetworkList(t.Context(), list, rt))
	require.NoError(t, chained.DelNetworkList(t.Context(), list, rt))
	requireNothing(t, n, pod, filepath.Base(n.bin))
}
