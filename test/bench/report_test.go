package main

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestQuantilesAreValuesThatWereMeasured(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.75: 4, 0.99: 5, 1: 5} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if !slices.Equal(values, []float64{5, 1, 4, 2, 3}) {
		t.Errorf("the values were sorted in place: %v", values)
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %v", got)
	}
}

func TestRatiosPairValuesOfTheSameRound(t *testing.T) {
	// Both beds are slow in the second round: the ratio does not see it.
	got := ratios([]float64{2, 20, 3}, []float64{1, 10, 2})
	if !slices.Equal(got, []float64{2, 2, 1.5}) {
		t.Errorf("ratios %v", got)
	}
	if got := quantile(got, 0.5); got != 2 {
		t.Errorf("median ratio %v", got)
	}
}

func TestAnAimIsMetOnTheRightSide(t *testing.T) {
	for _, c := range []struct {
		line line
		met  bool
	}{
		{line{Value: 1e9}, true}, // no aim
		{line{Value: 1.05, Aim: 1.05}, true},
		{line{Value: 1.051, Aim: 1.05}, false},
		{line{Value: 0.92, Aim: 0.92, AtLeast: true}, true},
		{line{Value: 0.919, Aim: 0.92, AtLeast: true}, false},
		{line{Value: math.NaN(), Aim: 1}, false},
	} {
		if got := c.line.met(); got != c.met {
			t.Errorf("%+v: met is %t", c.line, got)
		}
	}
}

func TestTheTableMarksAMissedAim(t *testing.T) {
	r := &report{Kernel: "6.1", CPUs: 2}
	r.add(line{What: "weir RR p50", Value: 1.0312, Unit: "x", Baseline: baseline, Aim: 1.05, Note: "25 rounds"})
	r.add(line{What: "weir UDP", Value: 0.8, Unit: "x", Baseline: baseline, Aim: 0.92, AtLeast: true})
	r.add(line{What: "hit", Value: 0.000036, Unit: "x"})
	r.add(line{What: "instructions", Value: 21885})
	var b strings.Builder
	r.print(&b)
	want := []string{
		"kernel 6.1, 2 CPUs",
		"what figure aim note",
		"weir RR p50 1.031 x <= 1.05 to min_peer; 25 rounds",
		"weir UDP 0.800 x >= 0.92 MISSED to min_peer",
		"hit 0.000036 x -",
		"instructions 21885 -",
	}
	for i, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if got := strings.Join(strings.Fields(l), " "); i >= len(want) || got != want[i] {
			t.Errorf("line %d: %q", i, got)
		}
	}
}

func TestSavedFiguresComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "bench.json")
	r := newReport()
	r.add(line{What: "a", Value: 1.5, Unit: "ms", Aim: 2})
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Kernel == "" || back.CPUs < 1 || !slices.Equal(back.Lines, r.Lines) {
		t.Errorf("read back %+v", back)
	}
	if _, err := os.Stat(path + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary file is still there: %v", err)
	}
}

func TestEverythingIsTornDownInReverseAlsoAfterAFailure(t *testing.T) {
	var order []int
	failed := errors.New("failed")
	var end teardown
	for i := range 3 {
		end = append(end, func() error {
			order = append(order, i)
			if i == 1 {
				return failed
			}
			return nil
		})
	}
	if err := end.run(); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	if !slices.Equal(order, []int{2, 1, 0}) {
		t.Errorf("order %v", order)
	}
}
