package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/spell"
	"github.com/weirnet/weir/pkg/version"
)

// Exit codes.
const (
	exitOK     = 0
	exitNo     = 1 // the answer is no
	exitFailed = 2 // it could not be asked or done: wrong usage, no agent, a failure
	// exitPipe is that of a shell's command whose reader went away (SIGPIPE).
	exitPipe = 128 + int(unix.SIGPIPE)
)

// defaultSocket is where an agent with default settings listens.
const defaultSocket = "/var/run/weir/weir.sock"

// app is what every command shares.
type app struct {
	out    io.Writer
	errOut io.Writer
	socket string
	format string // table or json
}

// exitError ends weir with an exit code and no further words: what is to be said
// has been printed already. Every other error is printed and ends with exitFailed.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// errNo ends a command whose answer is no.
const errNo = exitError(exitNo)

// usageError is wrong usage; its text says what to do.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

// Execute runs the command line and returns the exit code.
func Execute(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	defer keepPipes()()
	a := &app{out: out, errOut: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err, gone := withoutPipe(root.ExecuteContext(ctx))
	var exit exitError
	switch {
	case err == nil && gone:
		return exitPipe
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	}
	fmt.Fprintf(errOut, "weir: %s\n", err)
	return exitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "weir",
		Short:         "Look into and test the network policy of pods",
		Long:          "weir asks the node's agent, reads its maps, and runs labs.\n\nExit codes: 0 done, 1 the answer is no, 2 it could not be asked or done: wrong usage, no agent, a failure.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			letSignalsEnd(c)
			if a.format != "table" && a.format != "json" {
				return usageError{fmt.Sprintf("--output %q is not known; give table or json", a.format)}
			}
			return nil
		},
	}
	socket := os.Getenv("WEIR_SOCKET_PATH")
	if socket == "" {
		socket = defaultSocket
	}
	root.PersistentFlags().StringVar(&a.socket, "socket", socket, "unix socket of the agent (environment: WEIR_SOCKET_PATH)")
	root.PersistentFlags().StringVarP(&a.format, "output", "o", "table", "table or json")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Sprintf("%s; see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(a.status(), a.endpoint(), a.identity(), a.policy(), a.source(), a.ip(), a.bpf(), a.monitor(), a.why(), a.lab(), a.version())
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// Root returns all commands, for the reference that is written from them.
func Root() *cobra.Command { return (&app{out: io.Discard, errOut: io.Discard}).root() }

// agent makes a client; nothing is dialled before its first call.
func (a *app) agent() *client.Client { return client.New(a.socket, version.String()) }

// exactArgs is cobra.ExactArgs with an error that shows the form.
func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{spell.Count(len(args), "argument") + " given; the form is: " + c.UseLine()}
		}
		return nil
	}
}

// atMostArgs is cobra.MaximumNArgs with an error that shows the form.
func atMostArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{spell.Count(len(args), "argument") + " given; the form is: " + c.UseLine()}
		}
		return nil
	}
}

// atLeastArgs is cobra.MinimumNArgs with an error that shows the form.
func atLeastArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return usageError{spell.Count(len(args), "argument") + " given; the form is: " + c.UseLine()}
		}
		return nil
	}
}

// noCommand refuses the arguments of a command that only holds others.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Sprintf("%q is not a command of %s; see %s --help", args[0], c.CommandPath(), c.CommandPath())}
	}
	return nil
}

// group is a command that only holds others.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: noCommand, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(children...)
	return c
}
