package metricsmap

import (
	"os"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	testutils.SameStructs(t, map[string]any{"metrics_entry": entry{}})
}

func TestTheMapIsTheOneOfC(t *testing.T) {
	testutils.SameMap(t, spec())
}

func TestCountersAreSummedOverTheCPUs(t *testing.T) {
	env := testutils.Kernel(t)
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenOrCreate(root)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	if all, err := m.Dump(); err != nil || len(all) != 0 {
		t.Fatalf("a new map counts %v, %v", all, err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	perCPU := func(packets, bytes uint64) []entry {
		v := make([]entry, cpus)
		for i := range v {
			v[i] = entry{packets, bytes}
		}
		return v
	}
	for index, v := range map[uint32][]entry{
		ReasonForwarded<<1 | 1: perCPU(3, 300), 133 << 1: perCPU(1, 60),
		ReasonEventLost << 1: perCPU(5, 0), ReasonEventLost<<1 | 1: perCPU(2, 0),
	} {
		if err := m.m.Put(index, v); err != nil {
			t.Fatal(err)
		}
	}
	m.Close()
	if m, err = Open(root); err != nil { // a restarted agent
		t.Fatal(err)
	}
	defer m.Close()
	n := uint64(cpus)
	want := []Count{
		{Reason: 0, Direction: 1, Packets: 3 * n, Bytes: 300 * n}, {Reason: 133, Packets: n, Bytes: 60 * n},
		{Reason: 255, Packets: 5 * n}, {Reason: 255, Direction: 1, Packets: 2 * n},
	}
	if got, err := m.Dump(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if lost, err := m.LostEvents(); err != nil || lost != 7*n {
		t.Errorf("%d events lost, %v, want %d", lost, err, 7*n)
	}
	if mem, err := m.MemoryBytes(); err != nil || mem != n*512*16 {
		t.Errorf("memory %d, %v", mem, err)
	}
}
