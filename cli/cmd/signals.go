package cmd

import (
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// letSignalsEnd gives SIGINT and SIGTERM their usual effect for commands that
// have nothing to undo: most of them compute or read, and look at no context.
func letSignalsEnd(c *cobra.Command) {
	if kernel := c.Flag("kernel"); c.HasParent() && c.Parent().Name() == "policy" && (kernel == nil || !kernel.Changed) {
		signal.Reset(unix.SIGINT, unix.SIGTERM)
	}
}
