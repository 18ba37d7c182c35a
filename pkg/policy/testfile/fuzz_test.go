package testfile

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/simulate"
)

// FuzzRun reads tests: every error has a place, the number of connections is
// bounded, and a test that is right can be asked, with the same answer each time.
func FuzzRun(f *testing.F) {
	f.Add([]byte(good))
	shop, err := os.ReadFile("../../../examples/shop/shop_test.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shop)
	f.Add([]byte(strings.Replace(good, "port: 443", "port: [1.5, [2], {}, http/UDP]", 1)))
	f.Add([]byte(strings.Replace(good, "10.1.0.1", "10.77.0.1", 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		docs, _ := k8s.Split(text, "f")
		for _, d := range docs {
			file, err := Read(d)
			if err != nil {
				for _, part := range strings.Split(err.Error(), "\n") {
					if part == "" {
						t.Fatalf("an empty line in %q", err)
					}
				}
				var fe *k8s.FieldError
				if !errors.As(err, &fe) || fe.File != "f" || fe.Line < 1 {
					t.Fatalf("%v (%T) names no place", err, err)
				}
				continue
			}
			if len(file.Expectations) == 0 || len(file.Expectations) > maxExpectations || file.Name == "" {
				t.Fatalf("%d expectations of %q", len(file.Expectations), file.Name)
			}
			if len(file.Expectations) > 50 || len(file.Pods) > 50 {
				continue
			}
			first, _, err := file.Run(simulate.Sketch{Cluster: "c"})
			again, _, err2 := file.Run(simulate.Sketch{Cluster: "c"})
			if (err == nil) != (err2 == nil) || len(first) != len(again) {
				t.Fatalf("asked twice: %v and %v", err, err2)
			}
			for i, a := range first {
				if a.Problem != again[i].Problem || a.Problem == "" && len(a.Answers) == 0 {
					t.Fatalf("%s: %q, then %q", a.Name(), a.Problem, again[i].Problem)
				}
			}
		}
	})
}

func FuzzParsePort(f *testing.F) {
	for _, s := range []string{"80", "http", "53/UDP", "dns/udp", "ICMP", "icmpv6", "/", "0", "65536", "a/b/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePort(s)
		switch {
		case err != nil:
			if !strings.HasPrefix(err.Error(), "port ") || !strings.Contains(err.Error(), "give ") {
				t.Fatalf("%q: %v", s, err)
			}
		case p.Name != "" && p.Number != 0, p.Proto.HasPorts() == (p.Name == "" && p.Number == 0):
			t.Fatalf("%q was taken: %+v", s, p)
		}
	})
}
