package orchestrator

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	sources "github.com/weirnet/weir/bpf"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/loader"
	"github.com/weirnet/weir/pkg/datapath/sysctl"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

// agentMaps opens private copies of the maps that the real sources declare.
func agentMaps(t testing.TB) map[string]*ebpf.Map {
	t.Helper()
	dir := t.TempDir()
	files, err := loader.BuildObjects(t.Context(), loader.Build{Sources: sources.Sources, Dir: dir, Logger: slog.New(slog.DiscardHandler)},
		[]loader.Shape{{IPv4: true, IPv6: true}})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := ebpf.LoadCollectionSpec(files[0])
	if err != nil {
		t.Fatal(err)
	}
	maps := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		if strings.HasPrefix(name, ".") || name == "weir_calls" {
			continue
		}
		if maps[name], err = bpf.Create(m); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { maps[name].Close() })
	}
	return maps
}

func TestAnEndpointIsBuiltAttachedReloadedAndUnloaded(t *testing.T) {
	env := testutils.Kernel(t, testutils.Tool("clang-19"))
	root, err := bpf.OpenRoot(env.BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root.Shapes()); err != nil {
			t.Error(err)
		}
	})
	state := t.TempDir()
	logger := slog.New(slog.DiscardHandler)
	l, err := loader.New(loader.Config{StateDir: state, Root: root, Sources: sources.Sources, Logger: logger, Maps: agentMaps(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	changes, damage := sysctl.Open(filepath.Join(state, "sysctl.json"))
	if damage != nil {
		t.Fatal(damage)
	}
	o := New(Config{Loader: l, Logger: logger, Shape: loader.Shape{IPv4: true, IPv6: true},
		SetUpNode: func(context.Context) error { return changes.Apply(sysctl.NodeSettings(true, true)) }})
	if err := o.Initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-o.DatapathInitialized()

	pod := testutils.NewNetns(t)
	h, err := link.CreateVeth(t.Context(), link.Pair{HostName: link.HostName("c", "eth0"), PodName: "eth0", NetNS: pod.FD(),
		HostMAC: link.NewMAC(), PodMAC: types.MAC{2, 0, 0, 0, 0, 9}, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Delete(h.Name)
	e := Endpoint{ID: 7, Identity: 70000, IfIndex: uint32(h.Index), MAC: types.MAC{2, 0, 0, 0, 0, 9}, NodeMAC: h.MAC}
	var before attach.Attached
	for range 2 { // the second is a reload
		loaded, err := o.ReloadDatapath(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		want := attach.Attached{From: loaded.programs.From.ID(), To: loaded.programs.To.ID()}
		if err := errors.Join(loaded.Attach(), loaded.Close()); err != nil {
			t.Fatal(err)
		}
		if got, err := o.Attached(h.Index); err != nil || got != want || got == before {
			t.Errorf("attached %+v, %v; loaded %+v, before %+v", got, err, want, before)
		}
		before = want
	}
	if n, err := o.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("the array in use was swept: %d, %v", n, err)
	}
	for range 2 {
		if err := o.Unload(e); err != nil {
			t.Error(err)
		}
	}
	if got, err := o.Attached(h.Index); err != nil || got != (attach.Attached{}) {
		t.Errorf("after unloading: %+v, %v", got, err)
	}
	if _, err := changes.Undo(); err != nil {
		t.Error(err)
	}
}

func TestANodeWithoutClangSaysSoAtInitialisation(t *testing.T) {
	env := testutils.Kernel(t)
	l, err := loader.New(loader.Config{StateDir: t.TempDir(), Root: bpf.Root{Path: env.BPFRoot}, Sources: sources.Sources,
		Clang: "/nowhere/clang", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := New(Config{Loader: l, Logger: slog.New(slog.DiscardHandler), Shape: loader.Shape{IPv4: true}})
	if err := o.Initialize(t.Context()); !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "clang-19") {
		t.Errorf("got %v", err)
	}
}
