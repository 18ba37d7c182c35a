package lab

import (
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/types"
)

func result(from, to, addr string, passed bool, sport uint16) Result {
	a := netip.MustParseAddr(addr)
	port := Port{types.ProtoTCP, 80}
	return Result{
		From: Source{Name: from}, To: Target{to, a, port}, Passed: passed,
		Flow: Flow{types.ProtoTCP, netip.AddrPortFrom(a, sport), netip.AddrPortFrom(a, 80)},
	}
}

func TestTableSaysWhoDenied(t *testing.T) {
	results := []Result{
		result("x/a", "x/b", "10.0.0.2", true, 1), result("x/a", "x/c", "10.0.0.3", false, 2),
		result("x/b", "x/c", "10.0.0.3", false, 3), result("ext", "x/b", "10.0.0.2", false, 4),
		result("ext", "x/c", "10.0.0.3", false, 5), result("x/a", "x/b", "fd00::2", true, 6),
	}
	denials := map[Flow][]Denial{
		results[1].Flow: {{"egress", "r1"}},
		results[2].Flow: {{"egress", "r1"}, {"ingress", "r2"}},
		results[3].Flow: {{"ingress", "r2"}},
	}
	var b strings.Builder
	targets := []Target{results[0].To, results[1].To, results[5].To}
	tables := Tables(results, targets, denials)
	for _, table := range tables {
		if err := table.Write(&b); err != nil {
			t.Fatal(err)
		}
	}
	want := "IPv4  x/b:80/TCP  x/c:80/TCP\n" +
		"x/a   .           E\n" +
		"x/b   -           B\n" +
		"ext   I           ?\n" +
		"IPv6  x/b:80/TCP\n" +
		"x/a   .\n"
	if b.String() != want {
		t.Fatalf("got\n%swant\n%s", b.String(), want)
	}
	back, err := ReadTables(strings.NewReader("# hand-written\n\n" + want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := Compare(back, tables); len(diff) != 0 {
		t.Fatalf("a table differs from its own text: %v", diff)
	}
	back[0].Rows[0].Cells[1] = "."
	back[0].Rows = back[0].Rows[:2]
	diff := Compare(back, tables)
	if len(diff) != 3 || diff[0].String() != "IPv4 x/a -> x/c:80/TCP: expected ., got E" || diff[1].Want != "nothing" {
		t.Fatalf("differences: %v", diff)
	}
}

func TestAWideTableIsNotCopiedForEveryColumn(t *testing.T) {
	wide := Table{Title: "IPv4", Rows: []Row{{Name: "x/a"}}}
	for range 1000 {
		wide.Columns = append(wide.Columns, "x/b:80/TCP")
		wide.Rows[0].Cells = append(wide.Rows[0].Cells, CellAllowed)
	}
	allocations := testing.AllocsPerRun(3, func() {
		if err := wide.Write(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
	if allocations >= 100 {
		t.Fatalf("%v allocations for 1000 columns", allocations)
	}
}

func TestBadTablesAreRefusedByLine(t *testing.T) {
	for text, want := range map[string]string{
		"x/a . .":              "line 1: a table starts",
		"IPv4 a b\nx/a .":      "line 2: row x/a has 1 cells",
		"IPv4 a\n\n#\nx/a . .": "line 4",
	} {
		if _, err := ReadTables(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
