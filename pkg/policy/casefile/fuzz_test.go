package casefile

import (
	"reflect"
	"strings"
	"testing"
)

// FuzzRead reads case files and plays what is not too long, twice with the same
// outcome.
func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(strings.Replace(small, `"namespaces": {"x": {"team": "x"}},`, "", 1)))
	f.Add([]byte(`{"format":"netpol-cases/1","worlds":{"w":{}},"cases":[{"world":"w","steps":[{"do":[{"setNamespace":{"name":"x"}},{"setPod":{"ns":"x","name":"a","ip":"::1"}}],"order":["x/a"]}]}]}`))
	f.Add([]byte(`{"format":"netpol-cases/1","worlds":{"w":null},"cases":[{"world":"w","steps":[{}]}]}`))
	f.Add([]byte(`{"format":"netpol-cases/1","worlds":{"w":null},"cases":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Read(strings.NewReader(string(text)))
		if err != nil {
			if m := err.Error(); !strings.HasPrefix(m, "read the policy cases: ") && !strings.HasPrefix(m, "case ") {
				t.Fatalf("%q names no place", m)
			}
			return
		}
		for _, c := range s.Cases[:min(len(s.Cases), 3)] {
			asked, wrong, err := s.Play(c, "default", ByMapState)
			again, wrong2, err2 := s.Play(c, "default", ByMapState)
			if asked != again || (err == nil) != (err2 == nil) || !reflect.DeepEqual(wrong, wrong2) {
				t.Fatalf("case %s: %d, %v, %v and then %d, %v, %v", c.ID, asked, wrong, err, again, wrong2, err2)
			}
			if len(wrong) > asked {
				t.Fatalf("case %s: %d cells asked, %d wrong", c.ID, asked, len(wrong))
			}
			for _, w := range wrong {
				if w.Got == w.Want || w.Step >= len(c.Steps) || !strings.Contains(w.String(), w.From) {
					t.Fatalf("case %s: %s", c.ID, w)
				}
			}
		}
	})
}

func FuzzProbe(f *testing.F) {
	for _, s := range []string{"TCP/80", "icmp/0", "47/0", "TCP", "/1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var p, again Probe
		if p.UnmarshalText([]byte(s)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(p.String())); err != nil || again != p {
			t.Fatalf("%q is %s, which is read as %s, %v", s, p, again, err)
		}
	})
}
