package ipcachemap

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

// copyAll fills a map with all that the former one has.
func copyAll(former, m *ebpf.Map) error {
	var keys []key
	var values []Entry
	err := bpf.Each(former, func(k key, e Entry) { keys, values = append(keys, k), append(values, e) })
	if err != nil {
		return err
	}
	if uint64(len(keys)) > uint64(m.MaxEntries()) {
		return fmt.Errorf("it holds %d prefixes; give ipcache-entries at least that", len(keys))
	}
	return bpf.Update(m, keys, values)
}
