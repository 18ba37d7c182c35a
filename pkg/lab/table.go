package lab

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Letters of a cell.
const (
	CellAllowed = "."
	CellIngress = "I" // denied by the destination's ingress policy
	CellEgress  = "E" // denied by the source's egress policy
	CellBoth    = "B"
	CellSkip    = "-" // not probed: one end itself, or neither end a pod
	CellSilent  = "?" // no answer, and no event that says why
)

// Denial is what an event said of a denied probe.
type Denial struct {
	Direction string // "ingress" or "egress"
	Rule      string // the rule in words
}

// Table is a truth table of one address family.
type Table struct {
	Title   string // "IPv4" or "IPv6"
	Columns []string
	Rows    []Row
}

// Row is a source and its cells, one a column.
type Row struct {
	Name  string
	Cells []string
}

// Tables arranges results by family, with the columns in the order of targets.
// Denials are looked up by flow.
func Tables(results []Result, targets []Target, denials map[Flow][]Denial) []Table {
	var out []Table
	for _, title := range []string{"IPv4", "IPv6"} {
		t := Table{Title: title}
		for _, to := range targets {
			if to.Addr.Is4() == (title == "IPv4") && !slices.Contains(t.Columns, to.Column()) {
				t.Columns = append(t.Columns, to.Column())
			}
		}
		cells := map[[2]string]string{}
		for _, r := range results {
			if r.To.Addr.Is4() != (title == "IPv4") {
				continue
			}
			if !slices.ContainsFunc(t.Rows, func(row Row) bool { return row.Name == r.From.Name }) {
				t.Rows = append(t.Rows, Row{Name: r.From.Name})
			}
			cells[[2]string{r.From.Name, r.To.Column()}] = Letter(r, denials[r.Flow])
		}
		for i := range t.Rows {
			for _, c := range t.Columns {
				letter, probed := cells[[2]string{t.Rows[i].Name, c}]
				if !probed {
					letter = CellSkip
				}
				t.Rows[i].Cells = append(t.Rows[i].Cells, letter)
			}
		}
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// Letter says in one character what became of a probe.
func Letter(r Result, denials []Denial) string {
	if r.Passed {
		return CellAllowed
	}
	in := slices.ContainsFunc(denials, func(d Denial) bool { return d.Direction == "ingress" })
	out := slices.ContainsFunc(denials, func(d Denial) bool { return d.Direction == "egress" })
	switch {
	case in && out:
		return CellBoth
	case in:
		return CellIngress
	case out:
		return CellEgress
	}
	return CellSilent
}

// Write prints the table with aligned columns, in the form that ReadTables reads.
func (t Table) Write(w io.Writer) error {
	width := len(t.Title)
	for _, r := range t.Rows {
		width = max(width, len(r.Name))
	}
	var line strings.Builder // grows with its length, however many columns there are
	fmt.Fprintf(&line, "%-*s", width, t.Title)
	for _, c := range t.Columns {
		line.WriteString("  ")
		line.WriteString(c)
	}
	if _, err := fmt.Fprintln(w, line.String()); err != nil {
		return err
	}
	for _, r := range t.Rows {
		line.Reset()
		fmt.Fprintf(&line, "%-*s", width, r.Name)
		for i, c := range r.Cells {
			line.WriteString("  ")
			line.WriteString(c)
			for range len(t.Columns[i]) - len(c) {
				line.WriteByte(' ')
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// ReadTables reads tables as a person writes them: a head line with the title
// and the columns, then a line per source. Blank lines and lines that start
// with # are passed over.
func ReadTables(r io.Reader) ([]Table, error) {
	var out []Table
	sc := bufio.NewScanner(r)
	for n := 1; sc.Scan(); n++ {
		words := strings.Fields(sc.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if words[0] == "IPv4" || words[0] == "IPv6" {
			out = append(out, Table{Title: words[0], Columns: words[1:]})
			continue
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("line %d: a table starts with a line \"IPv4 COLUMN...\" or \"IPv6 COLUMN...\"", n)
		}
		t := &out[len(out)-1]
		if len(words)-1 != len(t.Columns) {
			return nil, fmt.Errorf("line %d: row %s has %d cells, the head line has %d columns", n, words[0], len(words)-1, len(t.Columns))
		}
		t.Rows = append(t.Rows, Row{words[0], words[1:]})
	}
	return out, sc.Err()
}

// Difference is a cell that is not as expected.
type Difference struct {
	Table, From, To, Want, Got string
}

// String prints one line for people.
func (d Difference) String() string {
	return fmt.Sprintf("%s %s -> %s: expected %s, got %s", d.Table, d.From, d.To, d.Want, d.Got)
}

// Compare lists the cells of want that got has otherwise or not at all, and
// the cells of got that want does not name.
func Compare(want, got []Table) []Difference {
	wanted, found := cells(want), cells(got)
	var out []Difference
	for _, c := range order(want) {
		if g, ok := found[c]; !ok {
			out = append(out, Difference{c[0], c[1], c[2], wanted[c], "nothing"})
		} else if g != wanted[c] {
			out = append(out, Difference{c[0], c[1], c[2], wanted[c], g})
		}
	}
	for _, c := range order(got) {
		if _, ok := wanted[c]; !ok {
			out = append(out, Difference{c[0], c[1], c[2], "nothing", found[c]})
		}
	}
	return out
}

func cells(tables []Table) map[[3]string]string {
	out := map[[3]string]string{}
	for _, t := range tables {
		for _, r := range t.Rows {
			for i, c := range r.Cells {
				out[[3]string{t.Title, r.Name, t.Columns[i]}] = c
			}
		}
	}
	return out
}

func order(tables []Table) [][3]string {
	var out [][3]string
	for _, t := range tables {
		for _, r := range t.Rows {
			for _, c := range t.Columns {
				out = append(out, [3]string{t.Title, r.Name, c})
			}
		}
	}
	return out
}
