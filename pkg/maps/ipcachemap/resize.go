package ipcachemap

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// resized puts a map with other room in the place of the pinned one, with all of
// its entries. Programs go on with the former map, which nobody writes to any
// more, until they are loaded again.
func resized(path string, maxEntries uint32) (*ebpf.Map, error) {
	old, err := bpf.Open(spec(0), path)
	if err != nil {
		return nil, err
	}
	defer old.Close()
	var keys []key
	var values []Entry
	err = bpf.Each(old, func(k key, e Entry) { keys, values = append(keys, k), append(values, e) })
	if err != nil {
		return nil, fmt.Errorf("read the former %s: %w", Name, err)
	}
	if uint64(len(keys)) > uint64(maxEntries) {
		return nil, fmt.Errorf("%s holds %d prefixes, and room for %d is asked for; give more", Name, len(keys), maxEntries)
	}
	m, err := bpf.Create(spec(maxEntries))
	if err != nil {
		return nil, err
	}
	if err := replacePin(m, path, keys, values); err != nil {
		m.Close()
		return nil, fmt.Errorf("put %s with room for %d prefixes in the place of the former one: %w", Name, maxEntries, err)
	}
	return m, nil
}

// replacePin fills the map and pins it in the place of another one, whole or not at all.
func replacePin(m *ebpf.Map, path string, keys []key, values []Entry) error {
	if err := bpf.Update(m, keys, values); err != nil {
		return err
	}
	beside := path + "_new"
	if err := os.Remove(beside); err != nil && !errors.Is(err, os.ErrNotExist) { // of an agent that died here
		return err
	}
	if err := m.Pin(beside); err != nil {
		return err
	}
	return os.Rename(beside, path)
}
