package attach

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/testutils"
)

// counter is a program that counts the packets it sees and passes or drops them.
type counter struct {
	*ebpf.Program
	name string
	hits *ebpf.Map
}

func (c counter) Name() string { return c.name }

func (c counter) id(t testing.TB) uint32 {
	t.Helper()
	info, err := c.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

func newHits(t testing.TB) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

const (
	pass = 0 // TC_ACT_OK
	drop = 2 // TC_ACT_SHOT
)

// newCounter counts UDP packets to port 9 (offset 36 of an IPv4 frame) in hits.
func newCounter(t testing.TB, name string, hits *ebpf.Map, verdict int32) counter {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(36, asm.Half),
		asm.JNE.Imm(asm.R0, 9, "out"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, hits.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return counter{p, name, hits}
}

func (c counter) count(t testing.TB) uint64 {
	t.Helper()
	var n uint64
	if err := c.hits.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func veth(t testing.TB) (int, *testutils.Netns) {
	t.Helper()
	pod := testutils.NewNetns(t)
	return testutils.VethPair(t, "lxctest", pod, "eth0").Attrs().Index, pod
}

func TestAttachQueryReplaceDetach(t *testing.T) {
	testutils.Kernel(t)
	index, _ := veth(t)
	hits := newHits(t)
	if a, err := Query(index); err != nil || a != (Attached{}) {
		t.Fatalf("fresh link: %+v, %v", a, err)
	}
	if err := Detach(index); err != nil {
		t.Fatalf("detach from a fresh link: %v", err)
	}
	for range 2 {
		from, to := newCounter(t, "weir_from_container", hits, pass), newCounter(t, "weir_to_container", hits, pass)
		if err := Attach(index, from, to); err != nil {
			t.Fatal(err)
		}
		if a, err := Query(index); err != nil || a != (Attached{from.id(t), to.id(t)}) {
			t.Fatalf("attached %d and %d, found %+v, %v", from.id(t), to.id(t), a, err)
		}
	}
	for range 2 {
		if err := Detach(index); err != nil {
			t.Fatal(err)
		}
	}
	qdiscs, err := netlink.QdiscList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qdiscs {
		if q.Type() == "clsact" {
			t.Error("clsact is left")
		}
	}
	if a, err := Query(4711); err != nil || a != (Attached{}) {
		t.Errorf("query of no link: %+v, %v", a, err)
	}
	if err := Detach(4711); err != nil {
		t.Errorf("detach from a link that is gone: %v", err)
	}
	if err := Attach(4711, newCounter(t, "weir_a", hits, pass), newCounter(t, "weir_b", hits, pass)); !errors.Is(err, unix.ENODEV) {
		t.Errorf("attach to no link: %v", err)
	}
}

func TestAFailedFirstAttachLeavesNothing(t *testing.T) {
	testutils.Kernel(t)
	index, _ := veth(t)
	hits := newHits(t)
	foreign := newCounter(t, "other", hits, pass)
	if err := Attach(index, foreign, newCounter(t, "weir_to_container", hits, pass)); err == nil {
		t.Fatal("a program that could not be recognised was attached")
	}
	if a, err := Query(index); err != nil || a != (Attached{}) {
		t.Errorf("left behind: %+v, %v", a, err)
	}
}

func TestDetachLeavesFiltersOfOthers(t *testing.T) {
	testutils.Kernel(t)
	index, _ := veth(t)
	hits := newHits(t)
	if err := Attach(index, newCounter(t, "weir_from_container", hits, pass), newCounter(t, "weir_to_container", hits, pass)); err != nil {
		t.Fatal(err)
	}
	other := newCounter(t, "someone", hits, pass)
	if err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: ingress().parent, Handle: 1, Priority: 7, Protocol: unix.ETH_P_ALL},
		Fd:          other.FD(), Name: "someone", DirectAction: true,
	}); err != nil {
		t.Fatal(err)
	}
	if err := Detach(index); err != nil {
		t.Fatal(err)
	}
	if ours, others, err := filters(index, ingress()); err != nil || len(ours) != 0 || others != 1 {
		t.Errorf("ours %d, others %d, %v", len(ours), others, err)
	}
}

// Every packet meets exactly one program while programs are replaced: the
// programs drop, so a packet without a program would be the one that arrives.
func TestReplacingUnderTrafficLosesNoPacketAndLetsNoneBy(t *testing.T) {
	testutils.Kernel(t)
	index, pod := veth(t)
	out, other := newHits(t), newHits(t)
	programs := make([]counter, 4)
	for i := range programs {
		programs[i] = newCounter(t, "weir_to_container", out, drop)
	}
	from := newCounter(t, "weir_from_container", other, pass)
	if err := Attach(index, from, programs[0]); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: net.IPv4(10, 9, 0, 2), State: netlink.NUD_PERMANENT,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}}); err != nil {
		t.Fatal(err)
	}
	received := func() (n uint64) {
		pod.Do(t, func() {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			n = l.Attrs().Statistics.RxPackets
		})
		return n
	}
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sock)
	to := &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 9, 0, 2}}
	quiet := received()
	stop, sent := make(chan struct{}), make(chan uint64)
	go func() { // the socket keeps its namespace, whatever thread sends
		payload := binary.BigEndian.AppendUint64(nil, 1)
		n := uint64(0)
		for {
			select {
			case <-stop:
				sent <- n
				return
			default:
				if unix.Sendto(sock, payload, 0, to) == nil {
					n++
				}
			}
		}
	}()
	for i := range 1000 {
		if err := Attach(index, from, programs[i%len(programs)]); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	n := <-sent
	if seen := programs[0].count(t); n == 0 || seen != n {
		t.Errorf("sent %d, the programs saw %d", n, seen)
	}
	if leaked := received() - quiet; leaked != 0 {
		t.Errorf("%d of %d packets met no program", leaked, n)
	}
}
