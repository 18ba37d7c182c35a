package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// graceFallback is waited where the kernel offers no way to wait for a grace
// period; one takes 4 to 24 ms here, and some multiples of that under load.
const graceFallback = time.Second

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1

// retired is a directory of pins that this process does not use.
type retired struct {
	dir    string
	calls  uint32
	bodies [2]uint32
}

// ReleaseRetired unpins the program arrays of former loads that no entry
// program in the kernel refers to, a grace period after that was seen, and
// returns how many. Call it after all endpoints have been loaded and attached,
// and now and then later; with nothing to release it costs one directory read.
//
// A program that was replaced loses its id when its last reference goes, but a
// CPU may be running it until the grace period ends, and the array is emptied
// the moment its last pin or descriptor goes: hence look, wait, unpin.
func (l *Loader) ReleaseRetired(ctx context.Context) (int, error) {
	candidates, err := l.listRetired()
	if err != nil || len(candidates) == 0 {
		return 0, err
	}
	used, err := usedMaps(ctx)
	if err != nil {
		return 0, err
	}
	idle := candidates[:0]
	for _, c := range candidates {
		if !used[c.calls].except(c.bodies) {
			idle = append(idle, c)
		}
	}
	if len(idle) == 0 {
		return 0, nil
	}
	if err := waitGracePeriod(ctx); err != nil {
		return 0, fmt.Errorf("wait for a grace period before releasing old programs: %w", err)
	}
	l.pins.Lock()
	defer l.pins.Unlock()
	released := 0
	for _, c := range idle {
		if l.isCurrent(c.dir, c.calls) {
			continue
		}
		if err := removePins(c.dir); err != nil {
			return released, err
		}
		if name := filepath.Base(c.dir); !strings.Contains(name, "-") {
			if err := os.RemoveAll(l.shapeState(name)); err != nil {
				return released, fmt.Errorf("remove the record of an old shape: %w", err)
			}
		}
		released++
	}
	return released, nil
}

// listRetired reads the pins under <root>/shapes that are not of a loaded shape.
func (l *Loader) listRetired() ([]retired, error) {
	l.pins.Lock()
	defer l.pins.Unlock()
	entries, err := os.ReadDir(l.cfg.Root.Shapes())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the pinned shapes: %w", err)
	}
	var out []retired
	for _, e := range entries {
		r := retired{dir: filepath.Join(l.cfg.Root.Shapes(), e.Name())}
		if l.isLoaded(e.Name()) {
			continue
		}
		if r.calls, err = pinnedMapID(filepath.Join(r.dir, callsPin)); err != nil {
			return nil, err
		}
		for slot, pin := range bodyPins() {
			if r.bodies[slot], err = pinnedProgramID(filepath.Join(r.dir, pin)); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// isLoaded reports whether this process uses the pins of hash. A slot whose
// load is not finished counts, whatever becomes of it.
func (l *Loader) isLoaded(hash string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shapes[hash] != nil
}

// isCurrent reports whether a directory that was seen as retired is used again
// or holds another array by now.
func (l *Loader) isCurrent(dir string, calls uint32) bool {
	now, err := pinnedMapID(filepath.Join(dir, callsPin))
	return err != nil || now != calls || l.isLoaded(filepath.Base(dir))
}

// Unused reports whether no program in the kernel refers to a map, attached or not,
// and none that did runs any more.
func Unused(ctx context.Context, m *ebpf.Map) (bool, error) {
	id, err := mapID(m)
	if err != nil {
		return false, err
	}
	used, err := usedMaps(ctx)
	if err != nil || len(used[id]) > 0 {
		return false, err
	}
	if err := waitGracePeriod(ctx); err != nil {
		return false, fmt.Errorf("wait for a grace period: %w", err)
	}
	return true, nil
}

// users are the programs that refer to one map.
type users map[uint32]bool

// except reports whether there is a user besides those given.
func (u users) except(ids [2]uint32) bool {
	for id := range u {
		if id != ids[0] && id != ids[1] {
			return true
		}
	}
	return false
}

// usedMaps asks the kernel for all programs and the maps they refer to.
func usedMaps(ctx context.Context) (map[uint32]users, error) {
	out := map[uint32]users{}
	var id ebpf.ProgramID
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list loaded programs: %w", err)
		}
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list loaded programs: %w", err)
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since
		}
		if err != nil {
			return nil, fmt.Errorf("open program %d: %w", id, err)
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			return nil, fmt.Errorf("ask about program %d: %w", id, err)
		}
		maps, _ := info.MapIDs()
		for _, m := range maps {
			if out[uint32(m)] == nil {
				out[uint32(m)] = users{}
			}
			out[uint32(m)][uint32(id)] = true
		}
	}
}

// waitGracePeriod returns when every CPU has left the programs that it was
// running at the call. MEMBARRIER_CMD_GLOBAL is that (membarrier(2), kernel
// 4.3); a kernel with nohz_full refuses it.
func waitGracePeriod(ctx context.Context) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return nil
	}
	select {
	case <-time.After(graceFallback):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func pinnedMapID(path string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // an unfinished load
	}
	if err != nil {
		return 0, fmt.Errorf("open the pin %s: %w", path, err)
	}
	defer m.Close()
	return mapID(m)
}

func pinnedProgramID(path string) (uint32, error) {
	p, err := ebpf.LoadPinnedProgram(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open the pin %s: %w", path, err)
	}
	defer p.Close()
	return programID(p)
}
