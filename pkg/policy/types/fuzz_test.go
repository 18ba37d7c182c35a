package types

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirnet/weir/pkg/types"
)

func FuzzParseMode(f *testing.F) {
	for _, s := range []string{"default", "ALWAYS", "never", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMode(s)
		if err != nil {
			if !strings.Contains(err.Error(), "give default, always or never") {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if again, err := ParseMode(m.String()); err != nil || again != m || !strings.EqualFold(m.String(), s) {
			t.Fatalf("%q is %s, which is %v, %v", s, m, again, err)
		}
	})
}

// FuzzRuleRef keeps a rule as rules.json does and compares two: what is equal in
// the order has one key, and the order has a direction.
func FuzzRuleRef(f *testing.F) {
	f.Add(uint8(0), "NetworkPolicy", "shop", "api", "ingress", 1, "x", uint8(1), "egress", 2)
	f.Add(uint8(1), "a|b", "", "c", "", -1, "", uint8(1), "", 0)
	f.Fuzz(func(t *testing.T, kind uint8, res, ns, name, section string, index int, file string, kind2 uint8, section2 string, index2 int) {
		for _, s := range []string{res, ns, name, section, section2, file} {
			if !utf8.ValidString(s) {
				return
			}
		}
		r := RuleRef{Kind: RuleKind(kind), Resource: Resource{Kind: res, Namespace: ns, Name: name, File: file, Line: index}, Section: section, Index: index, Log: file}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back RuleRef
		if err := json.Unmarshal(text, &back); err != nil || back.Key() != r.Key() || back.String() != r.String() || back.Log != r.Log {
			t.Fatalf("%+v was kept as %s and is %+v, %v", r, text, back, err)
		}
		o := RuleRef{Kind: RuleKind(kind2), Resource: r.Resource, Section: section2, Index: index2}
		if r.Compare(o) != -o.Compare(r) {
			t.Fatalf("%+v and %+v: %d and %d", r, o, r.Compare(o), o.Compare(r))
		}
		if (r.Compare(o) == 0) != (r.Key() == o.Key()) && !strings.Contains(section+section2, "|") {
			t.Fatalf("%+v and %+v: order %d, keys %q and %q", r, o, r.Compare(o), r.Key(), o.Key())
		}
	})
}

// FuzzPort prints ports: two that print alike select the same.
func FuzzPort(f *testing.F) {
	f.Add(uint8(6), uint16(80), uint16(90), "", false)
	f.Add(uint8(1), uint16(8), uint16(0), "", true)
	f.Add(uint8(17), uint16(0), uint16(0), "dns", false)
	f.Fuzz(func(t *testing.T, proto uint8, first, last uint16, name string, icmp bool) {
		p := Port{Proto: types.Proto(proto), Port: first, End: last, Name: name, ICMPType: icmp}
		s := p.String()
		word, protocol, ok := cutLast(s, "/")
		if !ok || word == "" {
			t.Fatalf("%+v is printed %q", p, s)
		}
		if back, err := types.ParseProto(protocol); err != nil || back != p.Proto {
			t.Fatalf("%+v is printed %q, whose protocol is %v, %v", p, s, back, err)
		}
	})
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func FuzzParseEnforcement(f *testing.F) {
	for _, s := range []string{"node", "default", "ALWAYS", "never", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseEnforcement(s)
		if err != nil {
			if !strings.Contains(err.Error(), "give node, default, always or never") {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if again, err := ParseEnforcement(e.String()); err != nil || again != e || !strings.EqualFold(e.String(), s) {
			t.Fatalf("%q is %s, which is %v, %v", s, e, again, err)
		}
		if m, own := e.Own(); own != (e != EnforcementNode) || own && EnforcementOf(m) != e {
			t.Fatalf("%s has the mode %s of its own: %v", e, m, own)
		}
	})
}
