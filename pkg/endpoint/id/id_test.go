package id

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, in, out, err string }{
		{"a bare number is a local id", "42", "42", ""},
		{"the prefix for local ids", "cilium-local:4095", "4095", ""},
		{"zero is no id", "0", "", "from 1 to 4095"},
		{"beyond the range", "4096", "", "from 1 to 4095"},
		{"not a number", "abc", "", "from 1 to 4095"},
		{"empty", "", "", "from 1 to 4095"},
		{"IPv4", "ipv4:10.0.0.3", "ipv4:10.0.0.3", ""},
		{"IPv6 keeps its colons", "ipv6:fd00::3", "ipv6:fd00::3", ""},
		{"IPv4 given as IPv6", "ipv6:10.0.0.3", "", "other family"},
		{"broken address", "ipv4:10.0.0", "", "ipv4"},
		{"attachment", "cni-attachment-id:abc:eth0", "cni-attachment-id:abc:eth0", ""},
		{"attachment without interface", "cni-attachment-id:abc", "", "interface name"},
		{"container", "container-id:abc", "container-id:abc", ""},
		{"empty container", "container-id:", "", "empty"},
		{"pod", "pod-name:shop/api", "pod-name:shop/api", ""},
		{"pod without namespace", "pod-name:api", "", "namespace, slash"},
		{"pod with two slashes", "pod-name:a/b/c", "", "namespace, slash"},
		{"unknown prefix", "cep-name:x", "", "not known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Parse(c.in)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.out, r.String())
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1", "ipv6:::1", "pod-name:a/b", "cni-attachment-id:a:b", ":", "ipv6:fe80::1%eth0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(r.String())
		if err != nil || again != r {
			t.Fatalf("%q printed as %q read as %v, %v", s, r, again, err)
		}
	})
}

func TestPoolGivesEveryNumberOnceThenSaysExhausted(t *testing.T) {
	var p Pool
	seen := map[uint16]bool{}
	for range Max {
		n, err := p.Take()
		require.NoError(t, err)
		require.False(t, seen[n])
		seen[n] = true
	}
	_, err := p.Take()
	require.ErrorIs(t, err, ErrExhausted)
	require.True(t, strings.Contains(err.Error(), "4095 of 4095"))
	p.Free(17)
	p.Free(17)
	n, err := p.Take()
	require.NoError(t, err)
	require.EqualValues(t, 17, n)
}

func TestPoolAgainstASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Pool
		model := map[uint16]bool{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := uint16(rapid.IntRange(0, 4100).Draw(t, "n"))
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				got, err := p.Take()
				if err != nil || model[got] || got < Min || got > Max {
					t.Fatalf("took %d, %v", got, err)
				}
				model[got] = true
			case 1:
				want := n >= Min && n <= Max && !model[n]
				if err := p.Reserve(n); (err == nil) != want {
					t.Fatalf("reserve %d: %v", n, err)
				}
				if want {
					model[n] = true
				}
			case 2:
				p.Free(n)
				delete(model, n)
			}
			if p.InUse() != len(model) {
				t.Fatalf("%d in use, want %d", p.InUse(), len(model))
			}
		}
	})
}

func TestAFreedNumberRests(t *testing.T) {
	var p Pool
	a, _ := p.Take()
	p.Free(a)
	b, _ := p.Take()
	require.NotEqual(t, a, b)
}
