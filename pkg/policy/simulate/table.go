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
// One port that two names stand for is one target, and a type of ICMP is one of
// its own family alone.
func (c *Cluster) Targets(is4 bool, portsOf func(name string) []Port) []Target {
	type place struct {
		name  string
		proto wtypes.Proto
		port  uint16
	}
	var out []Target
	seen := map[place]bool{}
	for _, name := range c.Names() {
		end, ok := c.familyOf(name, is4)
		if !ok {
			continue
		}
		for _, p := range portsOf(name) {
			at := place{name, p.Proto, p.Port}
			if !seen[at] && !p.otherFamily(is4) {
				seen[at] = true
				out = append(out, Target{end, p.Proto, p.Port})
			}
		}
	}
	return out
}

// otherFamily reports whether the port is a type of the other family's ICMP.
func (p Port) otherFamily(is4 bool) bool {
	return p.Proto == wtypes.ProtoICMP && !is4 || p.Proto == wtypes.ProtoICMPv6 && is4
}

func (c *Cluster) familyOf(name string, is4 bool) (End, bool) {
	for _, e := range c.byName[name] {
		if e.Addr.Is4() == is4 {
			return e, true
		}
	}
	return End{}, false
}

// maxCells is the most cells of a table.
const maxCells = 10_000_000

// Tables judges every pair of ends on the ports of the destination. only, if
// set, keeps the row and the columns of that end, in two tables where one would
// be nearly all blank and too large. Without it a table that is too large is an
// error.
func (c *Cluster) Tables(portsOf func(name string) []Port, only string) ([]Table, error) {
	return c.tables(portsOf, only, maxCells)
}

func (c *Cluster) tables(portsOf func(name string) []Port, only string, most int) ([]Table, error) {
	out := []Table{}
	for _, is4 := range []bool{true, false} {
		g := grid{c: c, most: most, only: only, family: "IPv6", targets: c.Targets(is4, portsOf)}
		if is4 {
			g.family = "IPv4"
		}
		for _, name := range c.Names() {
			if from, ok := c.familyOf(name, is4); ok {
				g.sources = append(g.sources, from)
			}
		}
		if len(g.targets) == 0 {
			continue
		}
		tables, err := g.tables()
		if err != nil {
			return nil, err
		}
		out = append(out, tables...)
	}
	return out, nil
}

// grid is the ends of one family that are to be judged.
type grid struct {
	c       *Cluster
	family  string
	sources []End
	targets []Target
	only    string
	most    int // cells of one table
}

func (g grid) tables() ([]Table, error) {
	if g.only == "" {
		if cells := len(g.sources) * len(g.targets); cells > g.most {
			return nil, fmt.Errorf("the table has %d cells (%d sources, %d ports), the most is %d; ask for one pod with --pod",
				cells, len(g.sources), len(g.targets), g.most)
		}
		t, err := g.table(g.sources, g.targets)
		return []Table{t}, err
	}
	from, err := g.part(func(e End) bool { return e.Name == g.only }, func(t Target) bool { return t.End.Name != g.only })
	if err != nil {
		return nil, err
	}
	to, err := g.part(func(e End) bool { return e.Name != g.only }, func(t Target) bool { return t.End.Name == g.only })
	if err != nil {
		return nil, err
	}
	rows, columns := len(from.Rows)+len(to.Rows), len(from.Columns)+len(to.Columns)
	if rows*columns > g.most {
		return []Table{from, to}, nil
	}
	return []Table{g.join(from, to)}, nil
}

// part judges those of the sources and targets that are asked for, and leaves out
// rows and columns in which there is nothing to ask.
func (g grid) part(source func(End) bool, target func(Target) bool) (Table, error) {
	sources := slices.DeleteFunc(slices.Clone(g.sources), func(e End) bool { return !source(e) })
	targets := slices.DeleteFunc(slices.Clone(g.targets), func(t Target) bool { return !target(t) })
	asked := func(from End, to Target) bool { return from.Pod || to.End.Pod }
	rows := slices.DeleteFunc(slices.Clone(sources), func(e End) bool {
		return !slices.ContainsFunc(targets, func(t Target) bool { return asked(e, t) })
	})
	columns := slices.DeleteFunc(targets, func(t Target) bool {
		return !slices.ContainsFunc(sources, func(e End) bool { return asked(e, t) })
	})
	return g.table(rows, columns)
}

// table judges sources and targets.
func (g grid) table(sources []End, targets []Target) (Table, error) {
	t := Table{Family: g.family, Columns: []string{}, Rows: []Row{}}
	for _, target := range targets {
		t.Columns = append(t.Columns, target.Column())
	}
	for _, from := range sources {
		row := Row{Name: from.Name, Cells: make([]string, 0, len(targets))}
		for _, to := range targets {
			letter, err := g.c.cell(from, to)
			if err != nil {
				return t, err
			}
			row.Cells = append(row.Cells, letters[letter])
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// letters are the cells as texts, made once.
var letters = map[byte]string{Allowed: string(Allowed), Ingress: string(Ingress), Egress: string(Egress), Both: string(Both), Nothing: string(Nothing)}

// join makes one table, in the order of the world, of what comes from an end and
// what goes to it. The rest is blank.
func (g grid) join(from, to Table) Table {
	type place struct{ row, column string }
	cells := map[place]string{}
	rows, columns := map[string]bool{}, map[string]bool{}
	for _, t := range []Table{from, to} {
		for _, column := range t.Columns {
			columns[column] = true
		}
		for _, r := range t.Rows {
			rows[r.Name] = true
			for i, cell := range r.Cells {
				cells[place{r.Name, t.Columns[i]}] = cell
			}
		}
	}
	out := Table{Family: g.family, Columns: []string{}, Rows: []Row{}}
	for _, t := range g.targets {
		if columns[t.Column()] {
			out.Columns = append(out.Columns, t.Column())
		}
	}
	for _, e := range g.sources {
		if !rows[e.Name] {
			continue
		}
		r := Row{Name: e.Name, Cells: make([]string, 0, len(out.Columns))}
		for _, column := range out.Columns {
			cell, asked := cells[place{e.Name, column}]
			if !asked {
				cell = string(Nothing)
			}
			r.Cells = append(r.Cells, cell)
		}
		out.Rows = append(out.Rows, r)
	}
	return out
}

func (c *Cluster) cell(from End, to Target) (byte, error) {
	if from.Name == to.End.Name || !from.Pod && !to.End.Pod {
		return Nothing, nil
	}
	egress, ingress, err := c.Decide(from, to.End, to.Proto, to.Port)
	return Letter(egress.Verdict, ingress.Verdict), err
}
