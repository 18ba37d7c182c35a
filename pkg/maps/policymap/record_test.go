package policymap

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/testutils"
)

func TestTwinsEqualTheStructsOfC(t *testing.T) {
	testutils.SameStructs(t, map[string]any{"policy_key": key{}, "policy_entry": entry{}})
}

func TestTheMapIsTheOneOfC(t *testing.T) {
	testutils.SameMap(t, outerSpec(DefaultSlots))
}

// drawPolicy draws contents that are folded: inside one plane the longest match
// carries the biggest order, as the resolver makes them.
func drawPolicy(t *rapid.T, name string) map[Key]Entry {
	want := map[Key]Entry{}
	for range rapid.IntRange(0, 12).Draw(t, name) {
		k := Key{Identity: rapid.Uint32Range(0, 2).Draw(t, "identity")}
		switch rapid.IntRange(0, 2).Draw(t, "length") {
		case 1:
			k.Protocol = 6
		case 2:
			k.Protocol, k.PortBits = 6, uint8(rapid.IntRange(14, 16).Draw(t, "bits"))
			k.Port = uint16(rapid.IntRange(0, 3).Draw(t, "port")) &^ (1<<(16-k.PortBits) - 1)
		}
		e := Entry{Order: rapid.Uint64Range(1, 6).Draw(t, "order"), Deny: rapid.Bool().Draw(t, "deny")}
		e.Order = e.Order<<1 | b2u(e.Deny)
		want[k] = e
	}
	folded := maps.Clone(want)
	for k := range want {
		for o, e := range want {
			if covers(o, k) && e.Order > folded[k].Order {
				folded[k] = e
			}
		}
	}
	return folded
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func covers(o, k Key) bool {
	if o.Identity != k.Identity || o.Direction != k.Direction {
		return false
	}
	if o.Protocol == 0 {
		return true
	}
	return o.Protocol == k.Protocol && o.PortBits <= k.PortBits && (o.Port^k.Port)>>(16-o.PortBits) == 0
}

// allows judges a packet as the programs do: the longest match of each plane,
// the biggest order between planes, nothing found means deny.
func allows(have map[Key]Entry, identities []uint32, port uint16) bool {
	best, found := Entry{}, false
	for _, id := range identities {
		packet := Key{Identity: id, Protocol: 6, Port: port, PortBits: 16}
		longest, length := Entry{}, -1
		for k, e := range have {
			if n := int(k.PortBits) + int(k.Protocol); covers(k, packet) && n > length {
				longest, length = e, n
			}
		}
		if length >= 0 && (!found || longest.Order > best.Order) {
			best, found = longest, true
		}
	}
	return found && !best.Deny
}

// Nor does one that only adds or removes allows deny what both policies allow.
func TestADeltaInPlaceNeverAllowsWhatBothPoliciesDeny(t *testing.T) {
	applied, oneWay := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		old, want := drawPolicy(t, "old"), drawPolicy(t, "want")
		if rapid.Bool().Draw(t, "grow") { // more of the kind that fits in place
			for k, e := range old {
				want[k] = e
			}
			want = refold(want)
		}
		before, err := encodeAll(listed(old))
		if err != nil {
			t.Fatal(err)
		}
		after, err := encodeAll(listed(want))
		if err != nil {
			t.Fatal(err)
		}
		d := difference(before, after)
		if !d.fitsInPlace(len(before)) {
			return
		}
		applied++
		strict := d.oneWay()
		if strict {
			oneWay++
		}
		sortForAdding(d.adds)
		sortForDeleting(d.deletes)
		have := maps.Clone(old)
		check := func() {
			for port := range uint16(5) {
				for _, ids := range [][]uint32{{0}, {1, 0}, {2, 0}, {1, 2, 0}} {
					if allows(have, ids, port) && !allows(old, ids, port) && !allows(want, ids, port) {
						t.Fatalf("peers %v port %d pass on the way\nfrom %v\nto   %v\nat   %v", ids, port, old, want, have)
					}
					if strict && !allows(have, ids, port) && allows(old, ids, port) && allows(want, ids, port) {
						t.Fatalf("peers %v port %d do not pass on the way\nfrom %v\nto   %v\nat   %v", ids, port, old, want, have)
					}
				}
			}
		}
		for _, r := range d.adds {
			k, e := r.decode()
			have[k] = e
			check()
		}
		for _, r := range d.deletes {
			k, _ := r.decode()
			delete(have, k)
			check()
		}
		if !maps.Equal(have, want) {
			t.Fatalf("the delta leads to %v, want %v", have, want)
		}
	})
	if applied == 0 || oneWay == 0 {
		t.Error("no drawn delta fitted in place; the test proves nothing")
	}
}

func refold(want map[Key]Entry) map[Key]Entry {
	folded := maps.Clone(want)
	for k := range want {
		for o, e := range want {
			if covers(o, k) && e.Order > folded[k].Order {
				folded[k] = e
			}
		}
	}
	return folded
}

func TestLinesAndRecordsAreOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Key{
			Identity: rapid.Uint32().Draw(t, "identity"), Direction: uint8(rapid.IntRange(0, 1).Draw(t, "direction")),
			Protocol: rapid.Uint8().Draw(t, "protocol"),
		}
		if k.Protocol != 0 {
			k.PortBits = uint8(rapid.IntRange(0, 16).Draw(t, "bits"))
			k.Port = rapid.Uint16().Draw(t, "port") &^ uint16(1<<(16-k.PortBits)-1)
		}
		e := Entry{
			Order: rapid.Uint64().Draw(t, "order"), Rule: rapid.Uint32().Draw(t, "rule"),
			ProxyPort: rapid.Uint16().Draw(t, "proxy"), Deny: rapid.Bool().Draw(t, "deny"),
		}
		var r record
		if err := r.set(&k, &e); err != nil {
			t.Fatal(err)
		}
		if gotKey, gotEntry := r.decode(); gotKey != k || gotEntry != e {
			t.Fatalf("%+v %+v became %+v %+v", k, e, gotKey, gotEntry)
		}
	})
}

func TestMalformedKeysAreRefused(t *testing.T) {
	for name, k := range map[string]Key{
		"a port of no protocol":      {PortBits: 16, Port: 80},
		"17 bits of a port":          {Protocol: 6, PortBits: 17},
		"bits outside the prefix":    {Protocol: 6, PortBits: 8, Port: 0x0101},
		"a third direction":          {Direction: 2},
		"a port that does not count": {Protocol: 6, Port: 80},
	} {
		if err := new(record).set(&k, &Entry{}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestRecordsAreSortedAsTheyCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOf(rapid.Custom(func(t *rapid.T) record {
			k := key{Identity: rapid.Uint32().Draw(t, "identity"), Direction: rapid.Uint8().Draw(t, "direction"),
				Protocol: rapid.Uint8().Draw(t, "protocol"), PrefixLen: rapid.Uint32Range(anyProtocolBits, exactPortBits).Draw(t, "length")}
			k.Port = [2]byte{rapid.Uint8().Draw(t, "high"), rapid.Uint8().Draw(t, "low")}
			if rapid.Bool().Draw(t, "alike") { // but for the length
				k.Identity, k.Direction, k.Protocol, k.Port = k.Identity%2<<24, 1, 6, [2]byte{}
			}
			return record{key: k}
		})).Draw(t, "records")
		want := slices.SortedFunc(slices.Values(records), compareKeys)
		if got := sorted(records); !slices.Equal(got, want) {
			t.Fatalf("sorted %v, want %v", got, want)
		}
	})
}

func TestOnlyEqualContentsAreTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawPolicy(t, "a"), drawPolicy(t, "b")
		ra, errA := encodeAll(listed(a))
		rb, errB := encodeAll(listed(b))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if equal := maps.Equal(a, b); same(ra, rb) != equal || equal && hashOf(ra) != hashOf(rb) {
			t.Fatalf("contents and what is said of them disagree: %v, %v", a, b)
		}
	})
}

func TestEveryLineOfALargePolicyCountsInItsHash(t *testing.T) {
	records, err := encodeAll(listed(lines(1, 1000)))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]int{hashOf(records): -1}
	for i := range records {
		records[i].entry.Rule++
		h := hashOf(records)
		if other, known := seen[h]; known {
			t.Fatalf("a change of line %d gives the hash of one of line %d", i, other)
		}
		seen[h] = i
		records[i].entry.Rule--
	}
}
