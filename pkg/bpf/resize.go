package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// formerSuffix is what the pin of a map has more while a map of another size has
// its place; newSuffix is that of the map that is to have the place.
const (
	formerSuffix = "_former"
	newSuffix    = "_new"
)

// OpenResized opens the map pinned at path or creates it, as OpenOrCreate does, but
// if the pinned one has other room, one of the wanted room takes the pin over, once
// prepare has filled it or found that it will do. Programs go on with the former map
// until they are loaded again: it comes too and stays pinned beside the other until
// the caller, who needs it no more, calls Drop. A former map that an earlier agent
// did not get to drop comes again, with the one that replaced it, whatever its room.
func OpenResized(spec *ebpf.MapSpec, path string, prepare func(former, m *ebpf.Map) error) (m, former *ebpf.Map, err error) {
	any := spec.Copy()
	any.MaxEntries = 0
	m, err = Open(any, path)
	if errors.Is(err, os.ErrNotExist) {
		if err := removePin(path + formerSuffix); err != nil { // of a map whose pin a person removed
			return nil, nil, err
		}
		m, err = OpenOrCreate(spec, path)
	}
	if err != nil {
		return nil, nil, err
	}
	former, err = openFormer(any, path, m)
	if err == nil && former == nil && m.MaxEntries() != spec.MaxEntries {
		former = m
		m, err = replace(former, spec, path, prepare)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("give %s room for %d: %w", spec.Name, spec.MaxEntries, err), m.Close(), former.Close())
	}
	return m, former, nil
}

// Drop gives up the former map of the one that is pinned at path.
func Drop(former *ebpf.Map, path string) error {
	return errors.Join(removePin(path+formerSuffix), former.Close())
}

// openFormer returns the map that m took the place of; nil if there is none, or if
// it is m itself, because an agent died before m lost its place.
func openFormer(any *ebpf.MapSpec, path string, m *ebpf.Map) (*ebpf.Map, error) {
	former, err := Open(any, path+formerSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	same, err := sameMap(m, former)
	if err == nil && same {
		err = errors.Join(removePin(path+newSuffix), Drop(former, path))
		former = nil
	}
	return former, err
}

// replace pins a new map at path, and the former one beside it.
func replace(former *ebpf.Map, spec *ebpf.MapSpec, path string, prepare func(former, m *ebpf.Map) error) (*ebpf.Map, error) {
	m, err := Create(spec)
	if err != nil {
		return nil, err
	}
	if err = prepare(former, m); err == nil {
		err = os.Link(path, path+formerSuffix)
	}
	if err == nil {
		err = m.Pin(path + newSuffix)
	}
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func removePin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a pin: %w", err)
	}
	return nil
}

func sameMap(a, b *ebpf.Map) (bool, error) {
	var ids [2]ebpf.MapID
	for i, m := range []*ebpf.Map{a, b} {
		info, err := m.Info()
		if err != nil {
			return false, fmt.Errorf("ask for the id of %s: %w", m, err)
		}
		ids[i], _ = info.ID()
	}
	return ids[0] == ids[1], nil
}
