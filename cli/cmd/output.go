package cmd

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"text/tabwriter"
)

// show prints v as JSON where that was asked for, else calls table.
func (a *app) show(v any, table func() error) error {
	if a.format != "json" {
		return table()
	}
	return a.printJSON(v)
}

// printJSON prints v as JSON; a list of nothing is [].
func (a *app) printJSON(v any) error {
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.IsNil() {
		v = []any{}
	}
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// rows prints lines of cells under a head line, in aligned columns.
func (a *app) rows(head string, lines [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(strings.Fields(head), "\t"))
	for _, line := range lines {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	return w.Flush()
}

// or returns s, or "-" where it is empty.
func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// joined prints a list for a cell.
func joined(parts []string) string { return or(strings.Join(parts, ",")) }
