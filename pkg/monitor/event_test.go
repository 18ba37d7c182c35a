package monitor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/drop"
	ptypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/pkg/types"
)

var boot = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	if err := CheckTypes(testutils.SharedTypes(t, "event")); err != nil {
		t.Fatal(err)
	}
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
		if _, err := json.Marshal(e); err != nil {
			t.Errorf("%+v has no JSON form: %v", e, err)
		}
	})
}

func TestTheJSONFormIsStable(t *testing.T) {
	r := sample()
	e, err := Decode(encodeRecord(t, r), boot)
	if err != nil {
		t.Fatal(err)
	}
	e.RuleText = "default/db ingress[0]"
	icmp := Event{Time: boot, Type: Drop, Direction: ptypes.Ingress, Reason: drop.ND, Protocol: types.ProtoICMPv6}
	icmp.Source.Addr = netip.MustParseAddr("fe80::1")
	icmp.Destination.Addr = netip.MustParseAddr("ff02::1")
	var got strings.Builder
	enc := json.NewEncoder(&got)
	for _, e := range []Event{e, icmp, {Time: boot, Type: Drop, Reason: drop.VLAN, Length: 46}, {Time: boot, Type: Lost, Lost: 7}} {
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"time":"2026-01-02T03:05:35Z","type":"verdict","verdict":"deny","reason":"policy-deny","direction":"egress","endpoint":12,` +
		`"source":{"ip":"10.0.0.1","port":40000,"identity":1000,"prefixIdentity":16777216},` +
		`"destination":{"ip":"10.0.0.2","port":80,"identity":1001,"prefixIdentity":16777217},` +
		`"proto":"TCP","tcpFlags":"SYN","rule":{"id":17,"text":"default/db ingress[0]"},"revision":5,"length":60}
{"time":"2026-01-02T03:04:05Z","type":"drop","verdict":"deny","reason":"nd-not-for-gateway","direction":"ingress",` +
		`"source":{"ip":"fe80::1","identity":0},"destination":{"ip":"ff02::1","identity":0},"proto":"ICMPv6","icmpType":0,"icmpCode":0}
{"time":"2026-01-02T03:04:05Z","type":"drop","verdict":"deny","reason":"vlan","direction":"ingress","source":{"identity":0},"destination":{"identity":0},"length":46}
{"time":"2026-01-02T03:04:05Z","type":"lost","lost":7}
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

func TestFlagNamesFollowTheHeader(t *testing.T) {
	for flags, want := range map[uint8]string{0: "", 0x12: "SYN,ACK", 0xff: "FIN,SYN,RST,PSH,ACK,URG,ECE,CWR"} {
		if got := FlagNames(flags); got != want {
			t.Errorf("%#x is %q, want %q", flags, got, want)
		}
	}
}

func TestEveryConditionOfAFilterCounts(t *testing.T) {
	e, err := Decode(encodeRecord(t, sample()), boot)
	if err != nil {
		t.Fatal(err)
	}
	deny, allow, egress, ingress := ptypes.Deny, ptypes.Allow, ptypes.Egress, ptypes.Ingress
	for name, c := range map[string]struct{ yes, no Filter }{
		"nothing":    {Filter{}, Filter{Types: []Type{Lost}}},
		"type":       {Filter{Types: []Type{Drop, Verdict}}, Filter{Types: []Type{Drop}}},
		"verdict":    {Filter{Verdict: &deny}, Filter{Verdict: &allow}},
		"direction":  {Filter{Direction: &egress}, Filter{Direction: &ingress}},
		"endpoint":   {Filter{Endpoint: 12}, Filter{Endpoint: 13}},
		"identity":   {Filter{Identity: 1001}, Filter{Identity: 1002}},
		"where":      {Filter{Identity: 1 << 24}, Filter{Identity: 1<<24 + 2}},
		"prefix":     {Filter{Prefix: netip.MustParsePrefix("10.0.0.2/32")}, Filter{Prefix: netip.MustParsePrefix("10.0.1.0/24")}},
		"port":       {Filter{Port: 80}, Filter{Port: 81}},
		"protocol":   {Filter{Protocol: types.ProtoTCP}, Filter{Protocol: types.ProtoUDP}},
		"rule":       {Filter{Rule: 17}, Filter{Rule: 18}},
		"both hold":  {Filter{Port: 40000, Endpoint: 12}, Filter{Port: 40000, Endpoint: 13}},
		"v6 network": {Filter{}, Filter{Prefix: netip.MustParsePrefix("::/0")}},
	} {
		if !c.yes.Match(e) || c.no.Match(e) {
			t.Errorf("%s: %v and %v, want true and false", name, c.yes.Match(e), c.no.Match(e))
		}
	}
	lost := Event{Type: Lost}
	if !(Filter{Port: 80}).Match(lost) || (Filter{Types: []Type{Drop}}).Match(lost) {
		t.Error("a notice of lost events passes unless the types leave it out")
	}
}
