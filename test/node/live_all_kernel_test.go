package node

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/cases"
)

// The 300 of all cases with the lowest sha256(id), every step and cell by a real
// packet. The 60 among them that TestSampledCasesByLivePackets plays are left to
// it.
func TestLowestCasesByLivePackets(t *testing.T) {
	env := testutils.Kernel(t)
	set, err := cases.Load()
	if err != nil {
		t.Fatal(err)
	}
	sampled := map[string]bool{}
	for _, c := range set.Sample(60, cases.SuiteCyclonus, cases.SuiteGenNP) {
		sampled[c.ID] = true
	}
	byWorld, elsewhere, suites := map[string][]casefile.Case{}, 0, map[string]int{}
	for _, c := range set.Lowest(300) {
		suites[c.Suite]++
		if sampled[c.ID] {
			elsewhere++
			continue
		}
		if chosen(c.ID) {
			byWorld[c.World] = append(byWorld[c.World], c)
		}
	}
	if elsewhere != 60 || len(suites) != 6 {
		t.Fatalf("%d of the 60 sampled cases are among the 300, of suites %v", elsewhere, suites)
	}
	steps, cells, played := 0, 0, 0
	var failed []string
	for _, name := range slices.Sorted(maps.Keys(byWorld)) {
		start := time.Now()
		w := startFullWorld(t, env, name, set.Worlds[name])
		for _, c := range byWorld[name] {
			n, wrong := w.play(c)
			cells, played, steps = cells+n, played+1, steps+len(c.Steps)
			if len(wrong) > 0 {
				failed = append(failed, c.ID)
				t.Errorf("%s (%s): %d of %d cells: %s", c.ID, c.Title, len(wrong), n, strings.Join(wrong[:min(5, len(wrong))], "; "))
			}
		}
		w.stop()
		t.Logf("world %s: %d cases in %s", name, len(byWorld[name]), time.Since(start).Round(time.Second))
	}
	t.Logf("%d cases, %d steps, %d cells; %d cases fail: %v", played, steps, cells, len(failed), failed)
	if chosen("") && played != 240 {
		t.Errorf("%d cases were played, want 240 beside the 60", played)
	}
}
