package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAWarningKeepsItsBeginningWhileItStands(t *testing.T) {
	r := New()
	now := time.Unix(100, 0)
	r.now = func() time.Time { return now }
	r.Set(Warning{Code: "source-held", Subject: "a.yaml", Text: "one"})
	now = time.Unix(200, 0)
	r.Set(Warning{Code: "source-held", Subject: "a.yaml", Text: "two", Breaks: BreaksEnforcement})
	require.Equal(t, []Warning{{Code: "source-held", Subject: "a.yaml", Text: "two", Breaks: BreaksEnforcement, Since: time.Unix(100, 0)}}, r.List())
	r.Clear("source-held", "a.yaml")
	require.Empty(t, r.List())
	r.Set(Warning{Code: "source-held", Subject: "a.yaml"})
	require.Equal(t, time.Unix(200, 0), r.List()[0].Since)
	require.Equal(t, BreaksNothing, r.List()[0].Breaks)
}

func TestReplaceLeavesOtherCodesAlone(t *testing.T) {
	r := New()
	r.now = func() time.Time { return time.Unix(1, 0) }
	r.Set(Warning{Code: "other"})
	r.Replace("set-aside", Warning{Subject: "x"}, Warning{Subject: "y"})
	r.now = func() time.Time { return time.Unix(2, 0) }
	r.Replace("set-aside", Warning{Subject: "y"}, Warning{Subject: "z"})
	var got []string
	for _, w := range r.List() {
		got = append(got, w.Code+"/"+w.Subject+"@"+w.Since.UTC().Format("05"))
	}
	require.Equal(t, []string{"other/@01", "set-aside/y@01", "set-aside/z@02"}, got)
}

func TestTheWorstComesFirst(t *testing.T) {
	r := New()
	r.Set(Warning{Code: "a"})
	r.Set(Warning{Code: "b", Breaks: BreaksPods})
	r.Set(Warning{Code: "c", Breaks: BreaksEnforcement})
	r.Set(Warning{Code: "d", Failing: true})
	var got string
	for _, w := range r.List() {
		got += w.Code
	}
	require.Equal(t, "dcba", got)
}
