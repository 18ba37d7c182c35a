package simulate

import (
	"fmt"
	"slices"

	"github.com/weirnet/weir/pkg/policy/types"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// Letters of a cell.
const (
	Allowed = '.' // both ends allow
	Ingress = 'I' // the destination denies
	Egress  = 'E' // the source denies
	Both    = 'B' // both deny
	Nothing = '-' // an end and itself, or two ends that are no pods
)

// Letter is the cell for the verdicts of the two ends; an end that is no pod allows.
func Letter(egress, ingress types.Verdict) byte {
	switch {
	case egress == types.Deny && ingress == types.Deny:
		return Both
	case egress == types.Deny:
		return Egress
	case ingress == types.Deny:
		return Ingress
	}
	return Allowed
}

// Table is the truth table of one address family.
type Table struct {
	Family  string   `json:"family"`  // IPv4 or IPv6
	Columns []string `json:"columns"` // NAME:PORT/PROTOCOL
	Rows    []Row    `json:"rows"`
}

// Row is a source and its cells, one a column.
type Row struct {
	Name  string   `json:"name"`
	Cells []string `json:"cells"`
}

// Target is a port of an end.
type Target struct {
	End   End
	Proto wtypes.Proto
	Port  uint16
}

// Column is the target's name in a table: "shop/api:80/TCP".
func (t Target) Column() string { return fmt.Sprintf("%s:%d/%s", t.End.Name, t.Port, t.Proto) }

// Targets lists the ports of every end of a family, in the order of the world.
// One port that two names stand for is one target.
func (c *Cluster) Targets(is4 bool, portsOf func(name string) []Port) []Target {
	var out []Target
	for _, name := range c.Names() {
		end, ok := c.familyOf(name, is4)
		if !ok {
			continue
		}
		for _, p := range portsOf(name) {
			t := Target{end, p.Proto, p.Port}
			if !slices.ContainsFunc(out, func(o Target) bool { return o.Column() == t.Column() }) {
				out = append(out, t)
			}
		}
	}
	return out
}

func (c *Cluster) familyOf(name string, is4 bool) (End, bool) {
	for _, e := range c.byName[name] {
		if e.Addr.Is4() == is4 {
			return e, true
		}
	}
	return End{}, false
}

// Tables judges every pair of ends on the ports of the destination. only, if
// set, keeps the row and the columns of that end.
func (c *Cluster) Tables(portsOf func(name string) []Port, only string) ([]Table, error) {
	var out []Table
	for _, is4 := range []bool{true, false} {
		t := Table{Family: "IPv6"}
		if is4 {
			t.Family = "IPv4"
		}
		targets := c.Targets(is4, portsOf)
		for _, target := range targets {
			t.Columns = append(t.Columns, target.Column())
		}
		for _, name := range c.Names() {
			from, ok := c.familyOf(name, is4)
			if !ok {
				continue
			}
			row := Row{Name: name}
			for _, to := range targets {
				letter, err := c.cell(from, to)
				if err != nil {
					return nil, err
				}
				row.Cells = append(row.Cells, string(letter))
			}
			t.Rows = append(t.Rows, row)
		}
		if len(t.Columns) > 0 {
			out = append(out, t.keep(targets, only))
		}
	}
	return out, nil
}

func (c *Cluster) cell(from End, to Target) (byte, error) {
	if from.Name == to.End.Name || !from.Pod && !to.End.Pod {
		return Nothing, nil
	}
	egress, ingress, err := c.Decide(from, to.End, to.Proto, to.Port)
	return Letter(egress.Verdict, ingress.Verdict), err
}

// keep blanks what neither comes from an end nor goes to it, and drops the rows
// and columns in which then nothing is left.
func (t Table) keep(targets []Target, only string) Table {
	if only == "" {
		return t
	}
	out := Table{Family: t.Family}
	mine := func(i int, row Row) bool {
		return (row.Name == only || targets[i].End.Name == only) && row.Cells[i] != string(Nothing)
	}
	var columns []int
	for i := range t.Columns {
		if slices.ContainsFunc(t.Rows, func(r Row) bool { return mine(i, r) }) {
			columns = append(columns, i)
			out.Columns = append(out.Columns, t.Columns[i])
		}
	}
	for _, r := range t.Rows {
		kept := Row{Name: r.Name}
		any := false
		for _, i := range columns {
			cell := string(Nothing)
			if mine(i, r) {
				cell, any = r.Cells[i], true
			}
			kept.Cells = append(kept.Cells, cell)
		}
		if any {
			out.Rows = append(out.Rows, kept)
		}
	}
	return out
}
