package types

import (
	"strings"
	"testing"
)

func FuzzParseProto(f *testing.F) {
	for _, s := range []string{"TCP", "icmpv6", "47", "0", "ANY", "+6", "256"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseProto(s)
		if err != nil {
			if !strings.Contains(err.Error(), "is not known; give") {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if again, err := ParseProto(p.String()); err != nil || again != p {
			t.Fatalf("%q is %d, printed %q, read back %d, %v", s, p, p, again, err)
		}
		if text, err := ParseProto(strings.ToLower(s)); err != nil || text != p {
			t.Fatalf("%q is %d, in lower case %d, %v", s, p, text, err)
		}
	})
}

func FuzzParseMAC(f *testing.F) {
	for _, s := range []string{"02:00:5e:00:53:01", "0200.5e00.5301", "02-00-5E-00-53-01", "", "02:00:5e:10:00:00:00:01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var m MAC
		if err := m.UnmarshalText([]byte(s)); err != nil {
			if !strings.Contains(err.Error(), "hardware address") || m != (MAC{}) {
				t.Fatalf("%q: %v, %v", s, m, err)
			}
			return
		}
		text, err := m.MarshalText()
		var again MAC
		if err != nil || again.UnmarshalText(text) != nil || again != m {
			t.Fatalf("%q is %v, written %q, read back %v", s, m, text, again)
		}
	})
}
