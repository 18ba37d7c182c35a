package survey

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/types"
)

// node is a kernel as the survey sees it.
type node struct {
	links    []link.Host
	runs     map[int]bool
	lxc      map[netip.Addr]lxcmap.Info
	prefixes map[netip.Prefix]ipcachemap.Entry
	routes   []route.Route
	err      error // of every dump
}

type lxcOf struct{ *node }
type ipcacheOf struct{ *node }
type routesOf struct{ *node }

func (n lxcOf) Dump() (map[netip.Addr]lxcmap.Info, error)            { return n.lxc, n.err }
func (n ipcacheOf) Dump() (map[netip.Prefix]ipcachemap.Entry, error) { return n.prefixes, n.err }
func (n routesOf) List() ([]route.Route, error)                      { return n.node.routes, n.err }
func (n *node) Audit(id uint16) (bool, error)                        { return id == 7, nil }
func (n *node) attached(i int) (a attach.Attached, err error) {
	if n.runs[i] {
		a.From = 1
	}
	return a, nil
}

func (n *node) take(t *testing.T, owner func(netip.Addr) (string, string)) *Survey {
	t.Helper()
	s, err := Take(Config{Logger: slog.New(slog.DiscardHandler), StateDir: t.TempDir(), BootID: "b", Links: func() ([]link.Host, error) { return n.links, nil },
		Attached: n.attached, Endpoints: lxcOf{n}, Addresses: ipcacheOf{n}, Words: n, Routes: routesOf{n}, Owner: owner})
	require.NoError(t, err)
	return s
}

var (
	a1  = netip.MustParseAddr("10.0.0.1")
	mac = types.MAC{2, 0, 0, 0, 0, 1}
)

func TestN02ALinkIsKnownAgainByWhateverIsLeftOfIt(t *testing.T) {
	marked := link.Host{Name: "lxc0123456789ab", Index: 5, PeerIndex: 2, MAC: types.MAC{2, 0, 0, 0, 0, 9}, Marked: true,
		Mark: link.Mark{Endpoint: 7, Container: "c1", Interface: "eth0", PodMAC: mac, Network: "weir", UID: "u", Namespace: "x", Pod: "web"}}
	bare := marked
	bare.Mark, bare.Marked = link.Mark{}, false
	lxc := map[netip.Addr]lxcmap.Info{a1: {IfIndex: 5, Identity: 300, ID: 7, MAC: mac, NodeMAC: marked.MAC}}
	ipcache := map[netip.Prefix]ipcachemap.Entry{netip.PrefixFrom(a1, 32): {Identity: 300}}
	owner := func(netip.Addr) (string, string) { return "c1:eth0", "x/web" }
	for what, n := range map[string]*node{
		"endpoint map alone":                    {links: []link.Host{bare}, lxc: lxc},
		"mark, routes and ipcache":              {links: []link.Host{marked}, routes: []route.Route{{Addr: a1, IfIndex: 5}}, prefixes: ipcache},
		"mark, map that cannot be read in part": {links: []link.Host{marked}, lxc: lxc, err: errors.New("broken")},
	} {
		s := n.take(t, owner)
		require.Empty(t, s.Orphans, what)
		require.Len(t, s.Records, 1, what)
		r := s.Records[0]
		require.True(t, r.Made())
		require.Equal(t, []any{uint16(7), uint32(300), mac, a1, "c1", "x/web", 5, 2, true},
			[]any{r.ID, r.Identity, r.MAC, r.IPv4, r.ContainerID, r.Pod().String(), r.IfIndex, r.PeerIndex, r.Audit}, what)
	}
	s := (&node{links: []link.Host{bare}, lxc: lxc}).take(t, nil)
	require.Equal(t, "unknown-lxc0123456789ab", s.Records[0].ContainerID, "nobody knows whose it is")

	s = (&node{links: []link.Host{bare}, runs: map[int]bool{5: true}}).take(t, nil)
	require.Empty(t, s.Records)
	require.Len(t, s.Orphans, 1)
	require.Contains(t, s.Orphans[0].Reason, "number")

	s = (&node{links: []link.Host{{Name: "lxc0123456789ab", Index: 5, Marked: true, Mark: link.Mark{Container: "c"}}, bare}}).take(t, nil)
	require.Empty(t, s.Records, "an ADD that never came to an endpoint, and a link of somebody else")
	require.Empty(t, s.Orphans)

	twin := bare
	twin.Index = 6
	s = (&node{links: []link.Host{bare, twin}, runs: map[int]bool{6: true}, lxc: map[netip.Addr]lxcmap.Info{
		a1: lxc[a1], a1.Next(): {IfIndex: 6, Identity: 301, ID: 7, MAC: mac, NodeMAC: mac}}}).take(t, nil)
	require.Len(t, s.Records, 1)
	require.Len(t, s.Orphans, 1)
	require.Contains(t, s.Orphans[0].Reason, "another endpoint")
}

func TestN25NumbersComeFromRecordsAndPrefixes(t *testing.T) {
	block, pod := netip.MustParsePrefix("10.0.0.0/24"), netip.PrefixFrom(a1, 32)
	n := &node{prefixes: map[netip.Prefix]ipcachemap.Entry{
		block: {Identity: 1<<24 + 1, PrefixIdentity: 1<<24 + 1},
		pod:   {Identity: 300, PrefixIdentity: 1<<24 + 2},
	}, links: []link.Host{{Index: 5, Marked: true}}, lxc: map[netip.Addr]lxcmap.Info{a1: {IfIndex: 5, Identity: 300, ID: 7, MAC: mac}}}
	s := n.take(t, nil)
	require.Equal(t, identity.IdentityMap{
		1<<24 + 1: labels.NewLabelArray(labels.CIDRLabel(block), labels.WorldLabel(block.Addr())),
		1<<24 + 2: labels.NewLabelArray(labels.CIDRLabel(block)),
	}, s.Identities())

	none := func(identity.NumericIdentity) labels.LabelArray { return nil }
	web := labels.NewLabelArray(labels.New("k8s", "app", "web"))
	s.Label(none, func(endpoint.Pod) labels.LabelArray { return nil }, nil)
	require.Empty(t, s.Records[0].LabelArray())
	s.Label(none, func(endpoint.Pod) labels.LabelArray { return web }, func(identity.NumericIdentity, labels.LabelArray) error { return errors.New("it is held for others") })
	require.Empty(t, s.Records[0].LabelArray())
	s.Label(none, func(endpoint.Pod) labels.LabelArray { return web }, func(n identity.NumericIdentity, _ labels.LabelArray) error {
		require.EqualValues(t, 300, n)
		return nil
	})
	require.Equal(t, web, s.Records[0].LabelArray())
	require.Equal(t, web, s.Identities()[300])
}
