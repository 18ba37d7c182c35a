package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/weirnet/weir/pkg/atomicfile"
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

// report is all figures of a run, in the order they were measured.
type report struct {
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Lines  []line `json:"lines"`
}

// newReport notes what the figures were measured on.
func newReport() *report {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		release = []byte("unknown")
	}
	return &report{Kernel: strings.TrimSpace(string(release)), CPUs: runtime.NumCPU()}
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
	const format = "%-40s %12s %-4s %-18s %s"
	fmt.Fprintf(w, "kernel %s, %d CPUs\n"+format+"\n", r.Kernel, r.CPUs, "what", "figure", "", "aim", "note")
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
			note = strings.TrimSuffix("to "+l.Baseline+"; "+note, "; ")
		}
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(format, l.What, strconv.FormatFloat(l.Value, 'f', places(l.Value), 64), l.Unit, aim, note), " "))
	}
}

// places is how many decimals a figure is printed with.
func places(v float64) int {
	switch {
	case v >= 1000:
		return 0
	case v >= 0.1:
		return 3
	}
	return 6
}

func (r *report) save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o644)
}

// quantile of values, q from 0 (least) to 1 (most); 0 where there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// ratios divides each of values by the one of base that was measured in the same round.
func ratios(values, base []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v / base[i]
	}
	return out
}

// spread says how far apart the values are: a figure without it says little.
func spread(values []float64) string {
	return fmt.Sprintf("half of %d within %.4g to %.4g", len(values), quantile(values, 0.25), quantile(values, 0.75))
}
