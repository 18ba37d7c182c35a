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
