package eventsmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// SharesName is the name of the map of shares and the last part of its pin path.
	SharesName = "weir_shares"

	shareKinds = 2    // 0 verdicts and audits, 1 drops
	endpoints  = 4096 // ids that an endpoint may have
)

// share is struct event_share.
type share struct {
	Window, Told, LeftOut uint64
}

// Shares is weir_shares: what each endpoint's programs told of, and what they
// left out because it was more than the endpoint's share. Safe for concurrent use.
type Shares struct {
	m    *ebpf.Map
	cpus int
}

func shareSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: SharesName, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 24, MaxEntries: shareKinds * endpoints}
}

// OpenOrCreateShares opens the pinned map or creates and pins an empty one.
func OpenOrCreateShares(root bpf.Root) (*Shares, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count the possible CPUs: %w", err)
	}
	m, err := bpf.OpenOrCreate(shareSpec(), root.Map(SharesName))
	if err != nil {
		return nil, err
	}
	return &Shares{m, cpus}, nil
}

// Map is the kernel's map, for the loader.
func (s *Shares) Map() *ebpf.Map { return s.m }

// Close closes the descriptor; the pin keeps the map.
func (s *Shares) Close() error { return s.m.Close() }

// LeftOut is how many events each endpoint left out since the map was made; those
// that left out none are absent.
func (s *Shares) LeftOut() (map[uint16]uint64, error) {
	const chunk = 1024
	out := map[uint16]uint64{}
	keys, values := make([]uint32, chunk), make([]share, chunk*s.cpus)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := s.m.BatchLookup(&cursor, keys, values, nil)
		for i, key := range keys[:n] {
			for _, v := range values[i*s.cpus : (i+1)*s.cpus] {
				if v.LeftOut > 0 {
					out[uint16(key/shareKinds)] += v.LeftOut
				}
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", SharesName, err)
		}
	}
}

// Reset gives an endpoint its whole share, for whoever reads all that is told.
func (s *Shares) Reset(id uint16) error {
	for kind := range uint32(shareKinds) {
		if err := s.m.Put(uint32(id)*shareKinds+kind, make([]share, s.cpus)); err != nil {
			return fmt.Errorf("write %s: %w", SharesName, err)
		}
	}
	return nil
}
