package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
)

// line is one figure of the report.
type line struct {
	What     string  `json:"what"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"` // "x" for a ratio to the baseline of the same run
	Baseline string  `json:"baseline,omitempty"`
	Aim      float64 `json:"aim,omitempty"`
	AtLeast  bool    `json:"atLeast,omitempty"` // the aim is a lower bound
	Note     string  `json:"note,omitempty"`
}

type report struct {
	Lines []line `json:"lines"`
}

func (r *report) add(l line) { r.Lines = append(r.Lines, l) }

// met reports whether the aim, if there is one, is met.
func (l line) met() bool {
	switch {
	case l.Aim == 0:
		return true
	case l.AtLeast:
		return l.Value >= l.Aim
	}
	return l.Value <= l.Aim
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%-44s %12s %-4s %-12s %s\n", "what", "figure", "", "aim", "note")
	for _, l := range r.Lines {
		aim := "-"
		if l.Aim != 0 {
			sign := "<="
			if l.AtLeast {
				sign = ">="
			}
			aim = fmt.Sprintf("%s %g", sign, l.Aim)
			if !l.met() {
				aim += " MISSED"
			}
		}
		note := l.Note
		if l.Baseline != "" {
			note = "to " + l.Baseline + " " + note
		}
		fmt.Fprintf(w, "%-44s %12.4g %-4s %-12s %s\n", l.What, l.Value, l.Unit, aim, note)
	}
}

func (r *report) save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// quantile of values, q from 0 to 1; the values are sorted in place.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sort.Float64s(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

func median(values []float64) float64 { return quantile(append([]float64(nil), values...), 0.5) }
