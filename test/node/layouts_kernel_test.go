package node

import (
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

// Maps that this version does not know end no agent and open nothing: the programs
// of before go on with them until the endpoints are built anew.
func TestN26AnAgentStartsOverMapsOfAnUnknownLayout(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := trio(t, env)
	sink := newSink(t, web.Netns, 10)
	stopDenied := hammer(t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], 10))
	for _, name := range []string{"weir_lxc", "weir_epconfig", "weir_policy", "weir_ct4", "weir_ct6", "weir_ipcache", "weir_metrics", "weir_frag"} {
		if err := b.KillAgent(); err != nil {
			t.Fatal(err)
		}
		pin := bpf.Root{Path: b.Record.BPFRoot}.Map(name)
		foreign, err := bpf.Create(&ebpf.MapSpec{Name: "foreign", Type: ebpf.Hash, KeySize: 44, ValueSize: 100, MaxEntries: 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		if err := foreign.Pin(pin); err != nil {
			t.Fatal(err)
		}
		foreign.Close()
		restart(t, b)
		b.Eventually("all endpoints ready", allReady(t, b, 3))
		expect(t, b, name+" is foreign", web, client, stranger)
		if got := subjects(t, b, "map-set-aside"); len(got) == 0 {
			t.Errorf("%s is foreign, and no warning says so", name)
		}
	}
	if sent, got := stopDenied(), sink.close(); sent == 0 || got != 0 {
		t.Errorf("%d of %d denied datagrams arrived", got, sent)
	}
}
