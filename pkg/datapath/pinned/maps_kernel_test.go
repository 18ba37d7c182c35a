package pinned

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

func TestEveryMapIsPinnedUnderItsNameAndFoundAgain(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { os.RemoveAll(filepath.Join(env.BPFRoot, "maps")) })
	sizes := Sizes{IPCacheEntries: 16, CTEntries: 64, EventBytes: 1 << 16}
	ids := map[string]uint32{}
	for range 2 { // the second is a restarted agent
		m, err := Open(root, sizes)
		if err != nil {
			t.Fatal(err)
		}
		for name, em := range m.Named() {
			info, err := em.Info()
			if err != nil {
				t.Fatal(err)
			}
			id, _ := info.ID()
			if _, err := os.Stat(root.Map(name)); err != nil || info.Name != name {
				t.Errorf("%s: the kernel calls it %s, and its pin: %v", name, info.Name, err)
			}
			if before, ok := ids[name]; ok && before != uint32(id) {
				t.Errorf("%s was made anew", name)
			}
			ids[name] = uint32(id)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	pins, err := os.ReadDir(root.Map(""))
	if err != nil || len(pins) < len(ids) || len(ids) != 12 {
		t.Errorf("%d maps, %d pins, %v", len(ids), len(pins), err)
	}
}

// What was opened before the map that cannot be had is closed: Kernel counts descriptors.
func TestAMapThatCannotBeHadClosesTheOthers(t *testing.T) {
	env := testutils.Kernel(t)
	root := bpf.Root{Path: env.BPFRoot}
	t.Cleanup(func() { os.RemoveAll(filepath.Join(env.BPFRoot, "maps")) })
	if m, err := Open(root, Sizes{IPCacheEntries: 16, CTEntries: 64, EventBytes: 4097}); err == nil {
		m.Close()
		t.Error("a ring of 4097 bytes was made")
	}
}
