package pinned

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/eventsmap"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/metricsmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
)

// pins are the names of maps, in the kernel and of their pins.
func pins() []string {
	return []string{lxcmap.Name, lxcmap.ConfigName, policymap.Name, ipcachemap.Name, "weir_ct4", "weir_ct6", ctmap.FragmentsName, metricsmap.Name, eventsmap.Name}
}

// Recover puts back the pins that are gone while programs use their maps: what is
// attached to links, and what it calls. Of several maps of a name that of the
// newest program counts. An empty directory in a pin's place is removed. It
// returns the names that it put back. What cannot be read is passed over.
func Recover(root bpf.Root, attached []ebpf.ProgramID) (put []string, err error) {
	missing := map[string]bool{}
	for _, name := range pins() {
		path := root.Map(name)
		if info, err := os.Lstat(path); err == nil && info.IsDir() {
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("a directory stands in the place of the pin %s: %w; remove it", path, err)
			}
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			missing[name] = true
		}
	}
	if len(missing) == 0 || len(attached) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(root.Map("x")), 0o700); err != nil {
		return nil, err
	}
	seen := map[ebpf.ProgramID]bool{0: true}
	todo := slices.Clone(attached)
	slices.Sort(todo)
	for len(todo) > 0 && len(missing) > 0 {
		id := todo[len(todo)-1] // the newest
		todo = todo[:len(todo)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		for _, m := range mapsOf(id) {
			name, called := look(m)
			todo = append(todo, called...)
			if missing[name] && m.Pin(root.Map(name)) == nil {
				delete(missing, name)
				put = append(put, name)
			}
			m.Close()
		}
	}
	slices.Sort(put)
	return put, nil
}

// mapsOf opens the maps that a program uses.
func mapsOf(id ebpf.ProgramID) []*ebpf.Map {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil // gone since
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil
	}
	ids, _ := info.MapIDs()
	var out []*ebpf.Map
	for _, id := range ids {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			out = append(out, m)
		}
	}
	return out
}

// look tells a map's name, and the programs that it holds.
func look(m *ebpf.Map) (name string, called []ebpf.ProgramID) {
	info, err := m.Info()
	if err != nil {
		return "", nil
	}
	if m.Type() == ebpf.ProgramArray {
		for slot := range m.MaxEntries() {
			var id uint32
			if m.Lookup(slot, &id) == nil {
				called = append(called, ebpf.ProgramID(id))
			}
		}
	}
	return info.Name, called
}
