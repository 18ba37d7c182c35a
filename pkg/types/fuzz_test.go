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
