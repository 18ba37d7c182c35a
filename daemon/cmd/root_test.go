package cmd

import (
	"bytes"
	"strings"
	"testing"
)

// The help tells every way to a setting, for the agent and its clean-up alike.
func TestTheHelpTellsOfVariables(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"cleanup", "--help"}} {
		var out, errOut bytes.Buffer
		if code := Execute(args, &out, &errOut); code != 0 || errOut.Len() > 0 {
			t.Fatalf("%v: exit code %d, %s", args, code, errOut.String())
		}
		for _, want := range []string{"WEIR_IPV4_POOL is --ipv4-pool", "--ipv4-pool string"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v does not say %q:\n%s", args, want, out.String())
			}
		}
	}
}

func TestWhatIsInForceForWrongFiles(t *testing.T) {
	for _, tt := range []struct {
		never, wrong int
		want         string
	}{
		{0, 2, "the last good version is in force"},
		{1, 1, "there was no good version yet, so nothing of it is in force"},
		{1, 2, "the last good version is in force, where there was one"},
	} {
		if got := inForce(tt.never, tt.wrong); got != tt.want {
			t.Errorf("%d of %d: got %q, want %q", tt.never, tt.wrong, got, tt.want)
		}
	}
}
