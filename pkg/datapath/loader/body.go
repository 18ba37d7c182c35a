package loader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/bpf"
)

const (
	recordVersion = 1
	newSuffix     = "-new"  // pins of a load that is not finished
	oldSuffix     = "-old-" // pins that a newer load of the same hash replaced
	mapPrefix     = "weir_" // maps that the agent owns
	callsPin      = "calls" // the program array
)

func bodyPins() []string { return []string{"from", "to"} } // index = slot

// shapeSlot makes sure that a shape is loaded once.
type shapeSlot struct {
	mu     sync.Mutex
	loaded *loadedShape // nil until it is
}

// loadedShape is a filled program array and what it was made from.
type loadedShape struct {
	calls  *ebpf.Map
	record shapeRecord
}

// shapeRecord proves after a restart that pinned bodies are those of this hash.
type shapeRecord struct {
	Version int               `json:"version"`
	Hash    string            `json:"hash"`
	BootID  string            `json:"boot-id"`
	Calls   uint32            `json:"calls-map-id"`
	Bodies  [2]uint32         `json:"body-program-ids"` // by slot
	Maps    map[string]uint32 `json:"map-ids"`          // the agent's maps that the bodies use
}

func (s *shapeSlot) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded == nil {
		return nil
	}
	calls := s.loaded.calls
	s.loaded = nil
	return calls.Close()
}

// loadShape returns the loaded bodies of an object, from this process, from the
// pins of a former one, or newly loaded.
func (l *Loader) loadShape(ctx context.Context, shape Shape, o *object) (*loadedShape, error) {
	hash := o.hash
	l.mu.Lock()
	slot := l.shapes[hash]
	if slot == nil {
		slot = &shapeSlot{}
		l.shapes[hash] = slot
	}
	l.mu.Unlock()

	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.loaded != nil {
		return slot.loaded, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("load shape %s: %w", shape, err)
	}
	l.pins.Lock()
	defer l.pins.Unlock()
	loaded, err := l.reopenShape(hash)
	if err == nil {
		slot.loaded = loaded
		return loaded, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		l.cfg.Logger.Info("Pinned bodies cannot be reused, loading new ones", "shape", shape, "hash", hash, "reason", err)
	}
	if loaded, err = l.newShape(hash, o.bodies.copy()); err != nil {
		return nil, fmt.Errorf("load the bodies of shape %s: %w", shape, err)
	}
	slot.loaded = loaded
	return loaded, nil
}

// reopenShape returns the pinned bodies of hash if the record says that they
// are what a load would give now.
func (l *Loader) reopenShape(hash string) (*loadedShape, error) {
	dir := l.cfg.Root.Shape(hash)
	r := shapeRecord{}
	damage := atomicfile.Load(l.recordFile(hash), func(data []byte) error {
		if err := json.Unmarshal(data, &r); err != nil {
			return err
		}
		if r.Version < 1 {
			return errors.New("it has no version")
		}
		return nil
	})
	switch {
	case damage != nil:
		return nil, damage
	case r.Version == 0:
		return nil, fs.ErrNotExist
	}
	boot, err := bpf.BootID()
	if err != nil {
		return nil, err
	}
	if r.Version != recordVersion || r.Hash != hash || r.BootID != boot {
		return nil, errors.New("the record is of another version, hash or boot")
	}
	for name, id := range r.Maps {
		if l.ids[name] != id {
			return nil, fmt.Errorf("map %s is another one now", name)
		}
	}
	calls, err := ebpf.LoadPinnedMap(filepath.Join(dir, callsPin), nil)
	if err != nil {
		return nil, err
	}
	if err := checkCalls(calls, dir, r); err != nil {
		calls.Close()
		return nil, err
	}
	return &loadedShape{calls: calls, record: r}, nil
}

// checkCalls compares the array, its slots and the pinned bodies with the record.
func checkCalls(calls *ebpf.Map, dir string, r shapeRecord) error {
	if id, err := mapID(calls); err != nil || id != r.Calls {
		return errors.New("the pinned array is not the recorded one")
	}
	for slot, pin := range bodyPins() {
		var held uint32
		if err := calls.Lookup(uint32(slot), &held); err != nil || held != r.Bodies[slot] {
			return fmt.Errorf("slot %d of the pinned array does not hold the recorded program", slot)
		}
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, pin), nil)
		if err != nil {
			return err
		}
		id, err := programID(p)
		p.Close()
		if err != nil || id != r.Bodies[slot] {
			return fmt.Errorf("the pinned program %s is not the recorded one", pin)
		}
	}
	return nil
}

// newShape loads the bodies, fills a fresh array and pins all three. The pins
// get their final place last, after the record is written.
func (l *Loader) newShape(hash string, bodies part) (*loadedShape, error) {
	maps, ids, err := l.sharedMaps(bodies)
	if err != nil {
		return nil, err
	}
	coll, err := l.loadCollection(bodies, maps, filepath.Join(l.shapeState(hash), "verifier.log"))
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	r := shapeRecord{Version: recordVersion, Hash: hash, Maps: ids}
	if r.BootID, err = bpf.BootID(); err != nil {
		return nil, err
	}
	calls := coll.Maps[callsMap]
	if r.Calls, err = mapID(calls); err != nil {
		return nil, err
	}
	for slot, name := range bodyPrograms() {
		if r.Bodies[slot], err = programID(coll.Programs[name]); err != nil {
			return nil, err
		}
		if err := calls.Put(uint32(slot), coll.Programs[name]); err != nil {
			return nil, fmt.Errorf("put %s into slot %d of the program array: %w", name, slot, err)
		}
	}
	if err := l.pinShape(hash, coll, r); err != nil {
		return nil, err
	}
	return &loadedShape{calls: coll.DetachMap(callsMap), record: r}, nil
}

// sharedMaps returns the agent's maps that p needs and their ids, and gives
// their room to p, since limits are configuration.
func (l *Loader) sharedMaps(p part) (map[string]*ebpf.Map, map[string]uint32, error) {
	maps, ids := map[string]*ebpf.Map{}, map[string]uint32{}
	for name := range p.plain.Maps {
		if name == callsMap || !strings.HasPrefix(name, mapPrefix) {
			continue
		}
		shared := l.cfg.Maps[name]
		if shared == nil {
			return nil, nil, fmt.Errorf("the object needs map %s, which was not opened: agent and BPF sources are of different versions", name)
		}
		p.plain.Maps[name].MaxEntries = shared.MaxEntries()
		maps[name], ids[name] = shared, l.ids[name]
	}
	return maps, ids, nil
}

func (l *Loader) pinShape(hash string, coll *ebpf.Collection, r shapeRecord) error {
	final := l.cfg.Root.Shape(hash)
	dir := final + newSuffix
	if err := removePins(dir); err != nil { // of a process that was killed
		return err
	}
	if err := l.cfg.Root.MkdirAll(dir); err != nil {
		return err
	}
	err := coll.Maps[callsMap].Pin(filepath.Join(dir, callsPin))
	for slot, pin := range bodyPins() {
		err = errors.Join(err, coll.Programs[bodyPrograms()[slot]].Pin(filepath.Join(dir, pin)))
	}
	if err == nil {
		err = setAside(final)
	}
	if err == nil {
		err = l.writeRecord(r)
	}
	if err == nil {
		err = os.Rename(dir, final)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pin the bodies at %s: %w", final, err), removePins(dir))
	}
	return nil
}

// setAside gives existing pins another name, because attached programs may
// still need them.
func setAside(dir string) error {
	for n := 1; ; n++ {
		err := os.Rename(dir, fmt.Sprintf("%s%s%d", dir, oldSuffix, n))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

func (l *Loader) shapeState(hash string) string { return filepath.Join(l.cfg.StateDir, "shapes", hash) }
func (l *Loader) recordFile(hash string) string {
	return filepath.Join(l.shapeState(hash), "record.json")
}

func (l *Loader) writeRecord(r shapeRecord) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(l.shapeState(r.Hash)), l.shapeState(r.Hash)} {
		if err := atomicfile.Dir(dir, 0o750); err != nil {
			return err
		}
	}
	return atomicfile.Write(l.recordFile(r.Hash), append(data, '\n'), 0o640)
}

// removePins removes a directory of pins; one that is not there is fine.
func removePins(dir string) error {
	for _, name := range append(bodyPins(), callsPin) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a pin: %w", err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a directory of pins: %w", err)
	}
	return nil
}

func mapID(m *ebpf.Map) (uint32, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("ask for the id of a map: %w", err)
	}
	id, _ := info.ID()
	return uint32(id), nil
}
