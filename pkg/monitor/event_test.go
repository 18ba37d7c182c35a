package monitor

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/drop"
	ptypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

var boot = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	testutils.SameStructs(t, map[string]any{"event": record{}})
}

// sample is a denied TCP SYN as the programs write it.
func sample() record {
	r := record{
		Timestamp: uint64(90 * time.Second), Type: 2, Reason: uint8(drop.PolicyDeny), Direction: 1, Family: familyV4,
		Endpoint: 12, Protocol: 6, TCPFlags: 0x02, SourcePort: [2]byte{0x9c, 0x40}, DestinationPort: [2]byte{0, 80},
		Length: 60, SourceIdentity: 1000, DestIdentity: 1001, SourcePrefix: 1 << 24, DestPrefix: 1<<24 + 1,
		Rule: 17, Revision: 5, IfIndex: 33,
	}
	copy(r.SourceAddress[:], []byte{10, 0, 0, 1})
	copy(r.DestinationAddress[:], []byte{10, 0, 0, 2})
	return r
}

func encodeRecord(t testing.TB, r record) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.NativeEndian, r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestARecordBecomesAnEvent(t *testing.T) {
	got, err := Decode(encodeRecord(t, sample()), boot)
	if err != nil {
		t.Fatal(err)
	}
	want := Event{
		Time: boot.Add(90 * time.Second), Type: Verdict, Verdict: ptypes.Deny, Reason: drop.PolicyDeny, Direction: ptypes.Egress,
		Endpoint: 12, Protocol: types.ProtoTCP, TCPFlags: 2, Rule: 17, Revision: 5, Length: 60, IfIndex: 33,
		Source:      Peer{netip.MustParseAddr("10.0.0.1"), 40000, 1000, 1 << 24},
		Destination: Peer{netip.MustParseAddr("10.0.0.2"), 80, 1001, 1<<24 + 1},
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestVerdictsAndFamilies(t *testing.T) {
	r := sample()
	r.Reason = 0
	if e, err := Decode(encodeRecord(t, r), boot); err != nil || e.Verdict != ptypes.Allow {
		t.Errorf("a verdict without a reason allows: %+v, %v", e, err)
	}
	r.Type = 1
	if e, err := Decode(encodeRecord(t, r), boot); err != nil || e.Verdict != ptypes.Deny {
		t.Errorf("a drop denies: %+v, %v", e, err)
	}
	r.Family, r.Protocol, r.DestinationPort = familyV6, 58, [2]byte{128, 3}
	r.SourceAddress = netip.MustParseAddr("fd00::1").As16()
	e, err := Decode(encodeRecord(t, r), boot)
	if err != nil || e.ICMPType != 128 || e.ICMPCode != 3 || e.Destination.Port != 0 || e.Source.Port != 40000 ||
		e.Source.Addr != netip.MustParseAddr("fd00::1") {
		t.Errorf("an echo request: %+v, %v", e, err)
	}
	r.Family = 0
	if e, err := Decode(encodeRecord(t, r), boot); err != nil || e.Source.Addr.IsValid() || e.ICMPType != 0 {
		t.Errorf("a frame that is not IP: %+v, %v", e, err)
	}
}

func TestWhatIsNoRecordIsRefused(t *testing.T) {
	good := encodeRecord(t, sample())
	if _, err := Decode(append(bytes.Clone(good), 1, 2, 3), boot); err != nil {
		t.Errorf("a longer record of a later version: %v", err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"nothing":           func([]byte) []byte { return nil },
		"a cut record":      func(b []byte) []byte { return b[:recordSize-1] },
		"an unknown type":   func(b []byte) []byte { b[8] = 9; return b },
		"the type Lost":     func(b []byte) []byte { b[8] = 255; return b },
		"a third direction": func(b []byte) []byte { b[10] = 2; return b },
		"a third family":    func(b []byte) []byte { b[11] = 3; return b },
	} {
		if e, err := Decode(change(bytes.Clone(good)), boot); err == nil {
			t.Errorf("%s became %+v", name, e)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encodeRecord(f, sample()))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, recordSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b, boot)
		if err != nil {
			return
		}
		if e.Source.Addr.IsValid() != e.Destination.Addr.IsValid() {
			t.Errorf("one end has an address: %+v", e)
		}
	})
}

func TestFlagNamesFollowTheHeader(t *testing.T) {
	for flags, want := range map[uint8]string{0: "", 0x12: "SYN,ACK", 0xff: "FIN,SYN,RST,PSH,ACK,URG,ECE,CWR"} {
		if got := FlagNames(flags); got != want {
			t.Errorf("%#x is %q, want %q", flags, got, want)
		}
	}
}
