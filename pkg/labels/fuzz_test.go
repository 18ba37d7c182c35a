package labels

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// FuzzSelector reads requirements from lines "operator source key value value",
// and labels from the last line. Neither order nor repetition changes a selector,
// and it matches as each of its requirements does by the definition of Kubernetes.
func FuzzSelector(f *testing.F) {
	f.Add("0 k8s app web api\n3 any x\nk8s:app=web k8s:y=")
	f.Add("1 reserved host a\n2 k8s a\nreserved:host= any:a=b")
	f.Add("0  : ;\n0 k8s app=web:x y;z\n:")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		var a LabelArray
		for _, w := range strings.Fields(lines[len(lines)-1]) {
			if l, err := Parse(w); err == nil && l.Source != SourceAny {
				a = a.With(l)
			}
		}
		var rs []Requirement
		for _, line := range lines[:len(lines)-1] {
			w := strings.Split(line, " ")
			if len(w) < 3 || len(w[0]) != 1 {
				continue
			}
			rs = append(rs, Requirement{Operator: Operator(w[0][0]-'0') & 3, Source: w[1], Key: w[2], Values: w[3:]})
		}
		s := NewSelector(rs...)
		want := !slices.ContainsFunc(rs, func(r Requirement) bool { return !holds(r, a) })
		if s.Matches(a) != want {
			t.Fatalf("%s matches %s: %v, want %v", s, a, !want, want)
		}
		back := slices.Clone(rs)
		slices.Reverse(back)
		if o := NewSelector(append(back, rs...)...); o.Key() != s.Key() || o.IsEmpty() != s.IsEmpty() {
			t.Fatalf("%q is another selector than %q", o.Key(), s.Key())
		}
		if o := (Selector{}).With(s.Requirements()...); o.Key() != s.Key() {
			t.Fatalf("%q is another selector than %q", o.Key(), s.Key())
		}
		if s.IsEmpty() != (len(rs) == 0) || s.IsEmpty() != (s.Key() == "") {
			t.Fatalf("%d requirements gave %q", len(rs), s.Key())
		}
		for i := range rs { // what is left out must show in the key, unless it is there twice
			less := NewSelector(slices.Delete(slices.Clone(rs), i, i+1)...)
			if less.Key() == s.Key() && len(less.Requirements()) != len(s.Requirements()) {
				t.Fatalf("%q names two selectors", s.Key())
			}
		}
	})
}

// holds is the meaning of a requirement, spelled out.
func holds(r Requirement, a LabelArray) bool {
	exists, in := false, false
	for _, l := range a {
		if l.Key != r.Key || r.Source != "" && r.Source != SourceAny && r.Source != l.Source {
			continue
		}
		exists = true
		in = in || slices.Contains(r.Values, l.Value)
	}
	switch r.Operator {
	case In:
		return in
	case NotIn:
		return !in
	case Exists:
		return exists
	}
	return !exists
}

// FuzzCIDRLabel makes labels of prefixes and reads them back.
func FuzzCIDRLabel(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0}, 8)
	f.Add(make([]byte, 16), 0)
	mapped := netip.MustParseAddr("::ffff:10.1.2.3").As16()
	f.Add(mapped[:], 100)
	f.Add(mapped[:], 95)
	f.Fuzz(func(t *testing.T, b []byte, bits int) {
		a, ok := netip.AddrFromSlice(b)
		p := netip.PrefixFrom(a, bits)
		l := CIDRLabel(p)
		if !ok || !p.IsValid() {
			if l != (Label{}) {
				t.Fatalf("%v has the label %s", p, l)
			}
			return
		}
		back, ok := l.Prefix()
		if !ok || back != CanonicalPrefix(p) || CIDRLabel(back) != l || CanonicalPrefix(back) != back {
			t.Fatalf("%v has the label %s, which is %v, %v", p, l, back, ok)
		}
		if parsed, err := Parse(l.String()); err != nil || parsed != l {
			t.Fatalf("%v is printed %q, which is read as %v, %v", l, l, parsed, err)
		}
		if !back.Contains(p.Addr()) && !back.Contains(p.Addr().Unmap()) {
			t.Fatalf("%v became %v", p, back)
		}
		set := NewLabelArray(WorldLabel(back.Addr()), l)
		if q, ok := set.Prefix(); !ok || q != back || !set.HasWorld() {
			t.Fatalf("%s has the prefix %v", set, q)
		}
	})
}

// FuzzFilter splits a set by filter rules: no label gets lost or decides about
// another, what a policy must be able to ask for stays, and a rule twice is the
// rule once.
func FuzzFilter(f *testing.F) {
	f.Add("!k8s:app, k8s:team", "k8s:app=web k8s:team=a k8s:io.kubernetes.pod.namespace=x reserved:host")
	f.Add("!.*,any:a+", "k8s:a container:a k8s:io.cilium.k8s.policy.cluster=c")
	f.Fuzz(func(t *testing.T, rules, texts string) {
		list := strings.Split(rules, ",")
		filter, err := ParseFilter(list)
		if err != nil {
			return
		}
		var a LabelArray
		for _, w := range strings.Fields(texts) {
			if l, err := Parse(w); err == nil {
				a = a.With(l)
			}
		}
		in, out := filter.Split(a)
		if len(in)+len(out) != len(a) || !in.With(out...).Equal(a) {
			t.Fatalf("%s was split into %s and %s", a, in, out)
		}
		for _, l := range a {
			if filter.Relevant(l) != slices.Contains(in, l) {
				t.Fatalf("%s alone is judged otherwise than in %s", l, a)
			}
			if l.Source == SourceReserved || l.Source == SourceK8s && (l.Key == KeyPodNamespace || l.Key == KeyCluster) {
				if !slices.Contains(in, l) {
					t.Fatalf("%s was left out", l)
				}
			}
		}
		twice, err := ParseFilter(append(list, list...))
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := twice.Split(in); !again.Equal(in) {
			t.Fatalf("%s was split again into %s", in, again)
		}
	})
}
