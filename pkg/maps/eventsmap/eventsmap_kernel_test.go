package eventsmap

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/testutils"
)

const noWakeup = 1 // BPF_RB_NO_WAKEUP

// producer is a program that puts its packet's length into the ring and
// returns 0, or 1 where the ring had no room.
func producer(t *testing.T, m *Map) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // skb->len
			asm.StoreMem(asm.RFP, -8, asm.R2, asm.DWord),
			asm.LoadMapPtr(asm.R1, m.m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -8),
			asm.Mov.Imm(asm.R3, 8),
			asm.Mov.Imm(asm.R4, noWakeup),
			asm.FnRingbufOutput.Call(),
			asm.Mov.Reg(asm.R6, asm.R0),
			asm.Mov.Imm(asm.R0, 0),
			asm.JEq.Imm(asm.R6, 0, "end"),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return().WithSymbol("end"),
		},
		License: "Dual BSD/GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func produce(t *testing.T, p *ebpf.Program, length int) (lost bool) {
	t.Helper()
	ret, _, err := p.Test(make([]byte, length))
	if err != nil {
		t.Fatal(err)
	}
	return ret == 1
}

func TestTheMapIsTheOneOfC(t *testing.T) {
	testutils.SameMap(t, spec(DefaultBytes))
}

func TestRecordsArriveWithoutAWakeUpAndOverARestart(t *testing.T) {
	root := openRoot(t)
	m, err := OpenOrCreate(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	if m.MemoryBytes() != DefaultBytes {
		t.Errorf("the ring has %d bytes", m.MemoryBytes())
	}
	p := producer(t, m)
	const n = 50
	for i := range n / 2 { // no reader yet
		produce(t, p, 64+i)
	}
	m.Close()
	if m, err = OpenOrCreate(root, 0); err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan uint64, n)
	done := make(chan error)
	go func() {
		done <- m.Run(ctx, func(b []byte) { got <- binary.NativeEndian.Uint64(b) })
	}()
	for i := range n / 2 {
		if want := uint64(64 + i); want != <-got {
			t.Fatalf("record %d is out of order", i)
		}
	}
	for i := range n / 2 { // the reader waits
		produce(t, p, 500+i)
		if want := uint64(500 + i); want != <-got {
			t.Fatalf("record %d of the second half is wrong", i)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end of the context is no failure: %v", err)
	}
}

func TestAFullRingLosesTheNewestAndIsReadWhole(t *testing.T) {
	root := openRoot(t)
	m, err := OpenOrCreate(root, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(root.Map(Name))
	defer m.Close()
	p := producer(t, m)
	lost, kept := 0, 0
	for range 300 { // 16 bytes each with the header
		if produce(t, p, 64) {
			lost++
		} else {
			kept++
		}
	}
	if lost == 0 {
		t.Fatal("300 records went into a ring for 256")
	}
	ctx, cancel := context.WithCancel(t.Context())
	read := 0
	if err := m.Run(ctx, func([]byte) {
		if read++; read == kept {
			cancel()
		}
	}); err != nil || read != kept {
		t.Errorf("read %d of %d, %v", read, kept, err)
	}
	cancel()
}

// Programs that were loaded before write to the former ring until they are gone;
// all is read, once, also if an agent dies in between.
func TestARingOfAnotherSizeIsReadBesideTheFormerOne(t *testing.T) {
	root := openRoot(t)
	defer os.RemoveAll(root.Map(""))
	open := func(size uint32) *Map {
		t.Helper()
		m, err := OpenOrCreate(root, size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	first := open(1 << 16)
	old := producer(t, first)
	seen := map[uint64]int{}
	run := func(m *Map, until uint64) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if err := m.Run(ctx, func(b []byte) {
			n := binary.NativeEndian.Uint64(b)
			if seen[n]++; n == until {
				cancel()
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	length := 64
	write := func(p *ebpf.Program) { produce(t, p, length); length++ }
	write(old)
	first.Close()
	for _, size := range []uint32{1 << 17, 1 << 15} {
		m := open(size)
		if m.Former() == nil || m.MemoryBytes() != uint64(size) {
			t.Fatalf("%s after %s", m.m, m.Former())
		}
		fresh := producer(t, m)
		write(old)
		write(fresh)
		run(m, uint64(length-1))
		m.Close()
		m = open(size) // a killed agent
		write(fresh)
		write(old)
		run(m, uint64(length-1))
		write(old)
		if err := m.TakeOver(); err != nil || m.Former() != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx, func(b []byte) { seen[binary.NativeEndian.Uint64(b)]++ }) }()
		for m.former.Load() != nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(root.Map(Name) + "_former"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the former ring is still pinned: %v", err)
		}
		m.Close()
		old = fresh
	}
	for n := range length - 64 {
		if seen[uint64(64+n)] != 1 {
			t.Errorf("record %d was told %d times", n, seen[uint64(64+n)])
		}
	}
}

func openRoot(t *testing.T) bpf.Root {
	t.Helper()
	root, err := bpf.OpenRoot(testutils.Kernel(t).BPFRoot)
	if err != nil {
		t.Fatal(err)
	}
	return root
}
