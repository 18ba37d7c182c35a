package cmd

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
)

// What became of a command in the lab: its own exit code, or what a signal did.
func TestTheEndOfACommandInTheLab(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		what, script string
		ctx          context.Context
		code         exitError
		says         string
	}{
		{"its own code", "exit 7", t.Context(), 7, ""},
		{"a signal", "kill -TERM $$", t.Context(), 143, "weir: sh was ended by a signal: terminated\n"},
		{"an interrupt", "exit 0", gone, 143, "weir: interrupted; sh was told to end\n"},
	} {
		var out, errOut bytes.Buffer
		a := &app{out: &out, errOut: &errOut}
		cmd := exec.CommandContext(tt.ctx, "sh", "-c", tt.script)
		if err := a.ended(tt.ctx, "sh", cmd.Run()); err != tt.code {
			t.Errorf("%s: got %v, want %d", tt.what, err, tt.code)
		}
		if errOut.String() != tt.says {
			t.Errorf("%s: says %q, want %q", tt.what, errOut.String(), tt.says)
		}
	}
	a := &app{}
	if err := a.ended(t.Context(), "sh", nil); err != nil {
		t.Error(err)
	}
	if err := a.ended(t.Context(), "no-such", exec.Command("no-such-command").Run()); err == nil || !strings.Contains(err.Error(), "no-such-command") {
		t.Errorf("a command that is not there: %v", err)
	}
}
