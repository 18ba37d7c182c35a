package cmd

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/drop"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/testutils"
)

// The counters of the pinned map, as a table and as JSON, without an agent.
func TestTheCountersArePrintedByReason(t *testing.T) {
	env := testutils.Kernel(t)
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	m, err := metricsmap.OpenOrCreate(root)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(metricsmap.Name))
	defer m.Close()
	none, noneOut, _ := runWeir(t, "bpf", "metrics", "--bpf-root", env.BPFRoot, "-o", "json")
	if none != exitOK || noneOut != "[]\n" {
		t.Errorf("nothing counted: exit code %d, %q", none, noneOut)
	}
	for index, v := range map[uint32][2]uint64{0<<1 | 1: {3, 300}, uint32(drop.PolicyDeny) << 1: {1, 60}, 255 << 1: {5, 0}} {
		cpus := make([][2]uint64, ebpf.MustPossibleCPU())
		cpus[0] = v
		if err := m.Map().Put(index, cpus); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errOut := runWeir(t, "bpf", "metrics", "--bpf-root", env.BPFRoot)
	want := "REASON       DIRECTION  PACKETS  BYTES\nforwarded    egress     3        300\npolicy-deny  ingress    1        60\nevent-lost   ingress    5        0\n"
	if code != exitOK || out != want {
		t.Errorf("exit code %d, %s\n%s, want\n%s", code, errOut, out, want)
	}
	_, out, _ = runWeir(t, "bpf", "metrics", "--bpf-root", env.BPFRoot, "-o", "json")
	var lines []metricsLine
	if err := json.Unmarshal([]byte(out), &lines); err != nil || len(lines) != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	if want := (metricsLine{"policy-deny", uint8(drop.PolicyDeny), "ingress", 1, 60, drop.PolicyDeny.Explain()}); !reflect.DeepEqual(lines[1], want) {
		t.Errorf("got %+v, want %+v", lines[1], want)
	}
}
