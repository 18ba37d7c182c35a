package labels

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRequirementMeansWhatKubernetesMeans(t *testing.T) {
	set := NewLabelArray(Label{"k8s", "app", "web"}, Label{"k8s", "empty", ""}, Label{"container", "img", "x"}, Label{"k8s", "img", "y"})
	for _, c := range []struct {
		name string
		r    Requirement
		want bool
	}{
		{"In with the value", Requirement{"k8s", "app", In, []string{"db", "web"}}, true},
		{"In without the value", Requirement{"k8s", "app", In, []string{"db"}}, false},
		{"In with the key absent", Requirement{"k8s", "x", In, []string{"web"}}, false},
		{"In with no values", Requirement{"k8s", "app", In, nil}, false},
		{"In with an empty value", Requirement{"k8s", "empty", In, []string{""}}, true},
		{"In does not take an absent key for an empty value", Requirement{"k8s", "x", In, []string{""}}, false},
		{"NotIn with the value", Requirement{"k8s", "app", NotIn, []string{"web"}}, false},
		{"NotIn without the value", Requirement{"k8s", "app", NotIn, []string{"db"}}, true},
		{"NotIn with the key absent", Requirement{"k8s", "x", NotIn, []string{"web"}}, true},
		{"Exists", Requirement{"k8s", "empty", Exists, nil}, true},
		{"Exists with the key absent", Requirement{"k8s", "x", Exists, nil}, false},
		{"DoesNotExist", Requirement{"k8s", "app", DoesNotExist, nil}, false},
		{"DoesNotExist with the key absent", Requirement{"k8s", "x", DoesNotExist, nil}, true},
		{"another source does not count", Requirement{"container", "app", Exists, nil}, false},
		{"any source counts every source", Requirement{"any", "img", In, []string{"y"}}, true},
		{"an empty source is any", Requirement{"", "img", In, []string{"x"}}, true},
		{"any source with NotIn looks at all of them", Requirement{"any", "img", NotIn, []string{"y"}}, false},
		{"any source with DoesNotExist", Requirement{"any", "img", DoesNotExist, nil}, false},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, NewSelector(c.r).Matches(set)) })
	}
}

func TestSelectorDemandsEverything(t *testing.T) {
	require.True(t, Selector{}.Matches(nil), "the zero value matches everything")
	require.True(t, Selector{}.IsEmpty())
	s := Equals(Label{"k8s", "app", "web"}).With(Requirement{"k8s", "tier", Exists, nil})
	require.False(t, s.Matches(NewLabelArray(Label{"k8s", "app", "web"})))
	require.True(t, s.Matches(NewLabelArray(Label{"k8s", "app", "web"}, Label{"k8s", "tier", "1"})))
	require.Equal(t, "k8s:app=web, k8s:tier", s.String())
	require.Equal(t, "!any:x, k8s:a in (1,2), k8s:b!=3", NewSelector(
		Requirement{"k8s", "b", NotIn, []string{"3"}}, Requirement{"k8s", "a", In, []string{"2", "1"}}, Requirement{"", "x", DoesNotExist, nil}).String())
	require.Equal(t, "everything", Selector{}.String())
}

func drawRequirement(t *rapid.T) Requirement {
	word := rapid.SampledFrom([]string{"", "a", "b", "a:b", "a;b", `a\`, "in"})
	return Requirement{
		Source: rapid.SampledFrom([]string{"", "k8s", "any", "x"}).Draw(t, "source"), Key: word.Draw(t, "key"),
		Operator: rapid.SampledFrom([]Operator{In, NotIn, Exists, DoesNotExist}).Draw(t, "op"),
		Values:   rapid.SliceOfN(word, 0, 3).Draw(t, "values"),
	}
}

func TestSelectorKeyIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rapid.SliceOfN(rapid.Custom(drawRequirement), 0, 4).Draw(t, "requirements")
		a := NewSelector(rs...)
		b := NewSelector(append(rapid.Permutation(rs).Draw(t, "order"), rs...)...)
		require.Equal(t, a.Key(), b.Key(), "order and repetition make no difference")
		c := NewSelector(rapid.SliceOfN(rapid.Custom(drawRequirement), 0, 4).Draw(t, "others")...)
		same := len(a.requirements) == len(c.requirements)
		for i := 0; same && i < len(a.requirements); i++ {
			same = compareRequirements(a.requirements[i], c.requirements[i]) == 0
		}
		require.Equal(t, same, a.Key() == c.Key())
	})
}

func TestSelectorSharesNothingWithItsArguments(t *testing.T) {
	values := []string{"b", "a"}
	s := NewSelector(Requirement{"k8s", "k", In, values})
	values[0] = "z"
	s.Requirements()[0].Values[0] = "y"
	require.True(t, s.Matches(NewLabelArray(Label{"k8s", "k", "a"})))
	require.Equal(t, "k8s:k=in:a:b;", s.Key())
}
