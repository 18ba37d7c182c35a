package upkeep

import (
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestN41AChainedBandwidthPluginIsToldOf(t *testing.T) {
	testutils.Kernel(t, testutils.Tool("tc"))
	name := link.HostName("c1", "eth0")
	testutils.VethPair(t, name, testutils.NewNetns(t), "eth0")
	testutils.VethPair(t, "other", testutils.NewNetns(t), "eth0")
	warnings := health.New()
	k := New(slog.New(slog.DiscardHandler), warnings, Bandwidth())
	tc := func(args string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "tc", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("tc %s: %v: %s", args, err, out)
		}
	}
	tc("qdisc add dev other root tbf rate 1mbit burst 32kbit latency 25ms")
	if err := k.SetUp(t.Context()); err != nil || len(warnings.List()) != 0 {
		t.Fatalf("another's link: %v, %v", err, warnings.List())
	}
	tc("qdisc add dev " + name + " root tbf rate 1mbit burst 32kbit latency 25ms")
	k.check(t.Context())
	if got := warnings.List(); len(got) != 1 || got[0].Subject != name || got[0].Next == "" {
		t.Errorf("told: %+v", got)
	}
	tc("qdisc del dev " + name + " root")
	k.check(t.Context())
	if got := warnings.List(); len(got) != 0 {
		t.Errorf("still told: %+v", got)
	}
}
