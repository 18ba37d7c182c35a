package testutils

import (
	"strings"
	"testing"
)

func TestAStructIsComparedFieldByField(t *testing.T) {
	types := sharedTypes(t, "metrics_entry")
	for _, c := range []struct {
		twin any
		want string // empty: equal
	}{
		{struct{ Packets, Bytes uint64 }{}, ""},
		{struct{ Packets uint64 }{}, "16 bytes in C and 8 in Go"},
		{struct {
			Packets      uint64
			Bytes, Extra uint32
		}{}, "2 fields in C and 3 in Go"},
		{struct {
			Packets [4]byte
			Bytes   [12]byte
		}{}, "packets is at 0 with 8 bytes in C, Packets is at 0 with 4"},
	} {
		err := sameStruct(types, "metrics_entry", c.twin)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%T: got %v, want %q", c.twin, err, c.want)
		}
	}
	if err := sameStruct(types, "no_such", struct{}{}); err == nil {
		t.Error("a struct that does not exist was found")
	}
}
