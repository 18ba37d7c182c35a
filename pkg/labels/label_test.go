package labels

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     Label
	}{
		{"source, key and value", "k8s:app=web", Label{"k8s", "app", "web"}},
		{"no source is unspec", "app=web", Label{"unspec", "app", "web"}},
		{"no value is empty", "reserved:host", Label{"reserved", "host", ""}},
		{"an empty value", "k8s:app=", Label{"k8s", "app", ""}},
		{"a dollar means reserved", "$world", Label{"reserved", "world", ""}},
		{"the value keeps '=' and ':'", "k8s:a=b=c:d", Label{"k8s", "a", "b=c:d"}},
		{"a ':' after '=' is no source", "a=b:c", Label{"unspec", "a", "b:c"}},
		{"a slash in the key", "k8s:app.kubernetes.io/name=x", Label{"k8s", "app.kubernetes.io/name", "x"}},
		{"escapes", `k8s:a\=b\:c=d\;e\\`, Label{"k8s", "a=b:c", `d;e\`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse(c.in)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for in, why := range map[string]string{
		"": "key is empty", ":a=b": "source before ':' is empty", "k8s:=b": "key is empty", "=b": "key is empty",
		"a=b;c": "unescaped ';'", `a\b=c`: "backslash", `a=\`: "backslash", "$": "key is empty",
	} {
		_, err := Parse(in)
		require.ErrorContains(t, err, why, "%q", in)
		require.ErrorContains(t, err, "write source:key=value")
	}
}

func TestStringOfALabel(t *testing.T) {
	require.Equal(t, "k8s:app=web", Label{"k8s", "app", "web"}.String())
	require.Equal(t, "reserved:host", Reserved("host").String())
	require.Equal(t, "unspec:a=b", New("", "a", "b").String())
}

var anyText = rapid.OneOf(rapid.StringMatching(`[a;=:\\$ ]{0,6}`), rapid.String())

func drawLabel(t *rapid.T) Label {
	return Label{
		Source: rapid.OneOf(rapid.SampledFrom([]string{"k8s", "reserved", "cidr"}), anyText).Draw(t, "source"),
		Key:    anyText.Filter(func(s string) bool { return s != "" }).Draw(t, "key"),
		Value:  anyText.Draw(t, "value"),
	}
}

func TestAnyLabelRoundTripsThroughItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLabel(t)
		l.Source = l.source()
		got, err := Parse(l.String())
		require.NoError(t, err)
		require.Equal(t, l, got)
	})
}

func TestAnySetRoundTripsThroughItsKey(t *testing.T) {
	draw := func(t *rapid.T) LabelArray {
		return NewLabelArray(rapid.SliceOfN(rapid.Custom(drawLabel), 0, 4).Draw(t, "set")...)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		got, err := ParseKey(a.Key())
		require.NoError(t, err)
		require.True(t, a.Equal(got))
		require.Equal(t, a.Equal(b), a.Key() == b.Key(), "equal sets and only they have equal keys")
	})
}

func TestKeysCannotBeConfused(t *testing.T) {
	one := NewLabelArray(Label{"k8s", "a", "b;k8s:c=d"})
	two := NewLabelArray(Label{"k8s", "a", "b"}, Label{"k8s", "c", "d"})
	require.NotEqual(t, one.Key(), two.Key())
	require.Equal(t, "k8s:a=b;k8s:c=d;", two.Key())
	require.NotEqual(t, NewLabelArray(Label{"k8s", "a=b", ""}).Key(), NewLabelArray(Label{"k8s", "a", "b="}).Key())
}

func TestParseKeyRefusesWhatKeyCannotHaveWritten(t *testing.T) {
	for _, in := range []string{"k8s:a=b", "k8s:b=1;k8s:a=1;", "k8s:a;", "a=b;", "k8s:a=1;k8s:a=2;", `k8s:a=b\;`, ";"} {
		_, err := ParseKey(in)
		require.Error(t, err, "%q", in)
	}
	a, err := ParseKey("")
	require.NoError(t, err)
	require.Empty(t, a)
}

func TestSetIsSortedAndUnique(t *testing.T) {
	in := []Label{{"k8s", "b", "1"}, {"container", "z", ""}, {"", "u", ""}, {"k8s", "b", "2"}, {"k8s", "", "x"}, {"k8s", "a", ""}}
	a := NewLabelArray(in...)
	require.Equal(t, LabelArray{{"container", "z", ""}, {"k8s", "a", ""}, {"k8s", "b", "2"}, {"unspec", "u", ""}}, a)
	require.Equal(t, "1", in[0].Value, "the argument is not touched")
	v, ok := a.Get("k8s", "b")
	require.True(t, ok)
	require.Equal(t, "2", v)
	_, ok = a.Get("k8s", "z")
	require.False(t, ok)
	_, ok = a.Get(SourceAny, "z")
	require.True(t, ok)
	require.Nil(t, NewLabelArray())
}

func TestMapOfLabelsKeepsOnePerKey(t *testing.T) {
	a := NewLabelArray(Label{"k8s", "a", "1"}, Label{"container", "a", "2"}, Label{"k8s", "b", ""})
	m := a.Labels()
	require.Equal(t, Labels{"a": {"container", "a", "2"}, "b": {"k8s", "b", ""}}, m)
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"k8s:app=web", "$host", `a\;b=c`, "a=b;c", "::", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := Parse(s)
		if err != nil {
			return
		}
		back, err := Parse(l.String())
		if err != nil || back != l {
			t.Fatalf("%q is %#v, printed %q, read back %#v, %v", s, l, l.String(), back, err)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"k8s:a=b;", `k8s:a=b\;;k8s:c=;`, "x", ";;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseKey(s)
		if err == nil && a.Key() != s {
			t.Fatalf("%q was accepted but its set has the key %q", s, a.Key())
		}
		if err == nil && strings.Count(s, ";") < len(a) {
			t.Fatalf("%q gave %d labels", s, len(a))
		}
	})
}
