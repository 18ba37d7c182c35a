package drop

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestEveryReasonHasAUniqueNameAndANextStep(t *testing.T) {
	seen := map[string]bool{}
	for r := range texts {
		if seen[r.String()] || strings.Contains(r.String(), " ") {
			t.Errorf("%d: name %q is taken or has a blank", r, r)
		}
		seen[r.String()] = true
		if n := strings.Count(r.Explain(), ". ") + strings.Count(r.Explain(), "; "); n < 1 {
			t.Errorf("%s: %q says no next step", r, r.Explain())
		}
	}
	if len(seen) < 15 {
		t.Fatalf("only %d reasons", len(seen))
	}
}

func TestUnknownReasons(t *testing.T) {
	if got := Reason(17).String(); got != "reason 17" {
		t.Error(got)
	}
	if !strings.Contains(Reason(17).Explain(), "weir version") {
		t.Error(Reason(17).Explain())
	}
	if Forwarded.String() != "forwarded" || EventLost.String() != "event-lost" {
		t.Error("the two that are no drops have no name")
	}
}

func TestGeneratedFileIsCurrent(t *testing.T) {
	before, err := os.ReadFile("zz_reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "run", "gen.go").CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, out)
	}
	after, err := os.ReadFile("zz_reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("zz_reasons.go was out of date; commit the new one")
	}
}
