package lxcmap

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/bpf"
)

const (
	// ConfigName is the configuration array's name and the last part of its pin path.
	ConfigName = "weir_epconfig"
	// MaxEndpoints is the number of endpoint ids; the largest id is one less.
	MaxEndpoints = 4096
	mmapable     = 1 << 10 // BPF_F_MMAPABLE
	configSize   = 24      // sizeof(struct endpoint_config)
	flagAudit    = 1       // CONFIG_AUDIT
)

// config is struct endpoint_config.
type config struct {
	Policy      uint64 // slot in the low half, revision in the high half
	FirstPacket uint64 // ns of CLOCK_BOOTTIME; written by the program
	Flags       uint32
	Pad         uint32
}

// errClosed is returned by a Config after Close.
var errClosed = errors.New("the endpoint configuration is closed")

// Config is weir_epconfig, mapped into memory. It is safe for concurrent use.
type Config struct {
	m        *ebpf.Map
	revision atomic.Uint32 // the last one given out

	mu  sync.RWMutex // held for writing by Close only
	mem []byte       // nil once closed
}

func configSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: ConfigName, Type: ebpf.Array, KeySize: 4, ValueSize: configSize,
		MaxEntries: MaxEndpoints, Flags: mmapable,
	}
}

// OpenConfig opens the pinned array for reading by a tool that runs beside the agent.
// Only the agent may write, because it owns the revision counter.
func OpenConfig(root bpf.Root) (*Config, error) {
	m, err := bpf.Open(configSpec(), root.Map(ConfigName))
	if err != nil {
		return nil, err
	}
	return newConfig(m)
}

// OpenOrCreateConfig opens the pinned array or creates and pins an empty one,
// in which no endpoint has a policy and everything is denied.
func OpenOrCreateConfig(root bpf.Root) (*Config, error) {
	m, err := bpf.OpenOrCreate(configSpec(), root.Map(ConfigName))
	if err != nil {
		return nil, err
	}
	return newConfig(m)
}

func newConfig(m *ebpf.Map) (*Config, error) {
	page := os.Getpagesize()
	size := (configSize*MaxEndpoints + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("map %s into memory: %w", ConfigName, err)
	}
	c := &Config{m: m, mem: mem}
	last := uint32(0)
	for id := range uint16(MaxEndpoints) {
		last = max(last, uint32(atomic.LoadUint64(c.policyWord(id))>>32))
	}
	c.revision.Store(last)
	return c, nil
}

// Map is the kernel's map, for the loader.
func (c *Config) Map() *ebpf.Map { return c.m }

// Close unmaps the array and closes the descriptor; the pin keeps the map.
func (c *Config) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mem == nil {
		return nil
	}
	err := unix.Munmap(c.mem)
	c.mem = nil
	return errors.Join(err, c.m.Close())
}

// NextRevision draws a policy revision that no endpoint ever had; never 0 (not
// a local endpoint) nor the largest number (a local endpoint without policy).
func (c *Config) NextRevision() uint32 {
	for {
		if r := c.revision.Add(1); r != 0 && r != math.MaxUint32 {
			return r
		}
	}
}

// SetPolicy switches an endpoint to a slot under a revision that NextRevision
// gave, in one atomic store. The revision must not be 0.
func (c *Config) SetPolicy(id uint16, slot, revision uint32) error {
	if revision == 0 {
		return fmt.Errorf("set policy of endpoint %d: revision 0 means never judged; draw one with NextRevision", id)
	}
	return c.with(id, func() {
		atomic.StoreUint64(c.policyWord(id), word(slot, revision))
	})
}

// Policy reads an endpoint's slot and revision; 0 and 0 if it never had one.
func (c *Config) Policy(id uint16) (slot, revision uint32, err error) {
	err = c.with(id, func() {
		w := atomic.LoadUint64(c.policyWord(id))
		slot, revision = uint32(w), uint32(w>>32)
	})
	return slot, revision, err
}

// SetAudit says whether what a rule denies the endpoint is let through and only
// told of. Flows that are open are judged anew by the next SetPolicy.
func (c *Config) SetAudit(id uint16, on bool) error {
	flags := uint32(0)
	if on {
		flags = flagAudit
	}
	return c.with(id, func() { atomic.StoreUint32(c.flagsWord(id), flags) })
}

// Audit reads what SetAudit said.
func (c *Config) Audit(id uint16) (on bool, err error) {
	err = c.with(id, func() { on = atomic.LoadUint32(c.flagsWord(id))&flagAudit != 0 })
	return on, err
}

// BumpRevision gives the endpoints one new revision and leaves their slots, so
// that their live flows are judged again at the next packet. Endpoints that
// have no policy are left alone.
func (c *Config) BumpRevision(ids ...uint16) (uint32, error) {
	revision := c.NextRevision()
	for _, id := range ids {
		err := c.with(id, func() {
			for p := c.policyWord(id); ; {
				old := atomic.LoadUint64(p)
				if old>>32 == 0 || atomic.CompareAndSwapUint64(p, old, word(uint32(old), revision)) {
					return
				}
			}
		})
		if err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// Clear takes an endpoint's policy away (everything is denied), and forgets its
// flags and its first packet. Call it before an id is used again and when it is freed.
func (c *Config) Clear(id uint16) error {
	revision := c.NextRevision()
	return c.with(id, func() {
		atomic.StoreUint64(c.policyWord(id), word(0, revision))
		atomic.StoreUint32(c.flagsWord(id), 0)
		atomic.StoreUint64(c.firstPacketWord(id), 0)
	})
}

// FirstPacket is when the endpoint sent its first packet, as time since boot;
// 0 if it sent none.
func (c *Config) FirstPacket(id uint16) (time.Duration, error) {
	var at uint64
	err := c.with(id, func() { at = atomic.LoadUint64(c.firstPacketWord(id)) })
	return time.Duration(at), err
}

// MemoryBytes is the kernel memory of the array, allocated at creation.
func (c *Config) MemoryBytes() uint64 { return uint64(configSize * MaxEndpoints) }

// with runs fn while the memory is mapped and id is inside the array.
func (c *Config) with(id uint16, fn func()) error {
	if id >= MaxEndpoints {
		return fmt.Errorf("endpoint id %d is outside the configuration array; ids go from 1 to %d", id, MaxEndpoints-1)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.mem == nil {
		return errClosed
	}
	fn()
	return nil
}

// policyWord and firstPacketWord are 8-byte aligned: the mapping starts at a
// page and an element is a multiple of 8 bytes.
func (c *Config) policyWord(id uint16) *uint64 {
	return (*uint64)(unsafe.Pointer(&c.mem[int(id)*configSize]))
}

func (c *Config) flagsWord(id uint16) *uint32 {
	return (*uint32)(unsafe.Pointer(&c.mem[int(id)*configSize+16]))
}

func (c *Config) firstPacketWord(id uint16) *uint64 {
	return (*uint64)(unsafe.Pointer(&c.mem[int(id)*configSize+8]))
}

func word(slot, revision uint32) uint64 { return uint64(revision)<<32 | uint64(slot) }

// ConfigSpec is the layout of the array.
func ConfigSpec() *ebpf.MapSpec { return configSpec() }

// Empty reports whether no endpoint ever had a policy here.
func (c *Config) Empty() bool { return c.revision.Load() == 0 }

// RaiseRevision lets the next revision be above one that is known from elsewhere.
func (c *Config) RaiseRevision(known uint32) {
	for {
		last := c.revision.Load()
		if last >= known || c.revision.CompareAndSwap(last, known) {
			return
		}
	}
}
