package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/weirnet/weir/pkg/version"
)

// Times within which the agent must have started and stopped.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 15 * time.Second
)

// helpWidth is how wide the list of settings is.
const helpWidth = 120

// settingsHelp says where settings are read from.
const settingsHelp = "Every flag is also a key of the YAML file of --config (mtu: 1400) and an environment variable: WEIR_ and the flag's\n" +
	"name in capitals with _ for - (WEIR_IPV4_POOL is --ipv4-pool). A flag wins over the variable, the variable over the file."

// Execute runs weir-agent and returns the exit code: 0 stopped by a signal, 1
// failed, 2 wrong usage.
func Execute(args []string, out, errOut io.Writer) int {
	exit := 0
	fail := func(code int, err error) {
		fmt.Fprintf(errOut, "weir-agent: %s\n", err)
		exit = code
	}
	withConfig := func(run func(*Config) error) func(*cobra.Command, []string) {
		return func(c *cobra.Command, args []string) {
			cfg, err := Load(args, os.Environ())
			switch {
			case errors.Is(err, pflag.ErrHelp):
				fmt.Fprintf(out, "%s\n\nUsage: %s [FLAGS]\n\n%s\n\n%s", c.Long, c.CommandPath(), settingsHelp, (&Config{}).flags().FlagUsagesWrapped(helpWidth))
			case err != nil:
				fail(2, err)
			default:
				if err := run(cfg); err != nil {
					fail(1, err)
				}
			}
		}
	}
	root := &cobra.Command{
		Use: "weir-agent", DisableFlagParsing: true, SilenceErrors: true, Args: cobra.ArbitraryArgs,
		Long: "weir-agent looks after the pods of one node: identities, policy, data plane. It needs root and runs until SIGTERM or\n" +
			"SIGINT; traffic goes on without it. Ask it with: weir status\n\n" +
			"weir-agent cleanup   undoes what agents with the same flags left on the node\n" +
			"weir-agent version   prints the version\n\n" +
			"Exit codes: 0 stopped by a signal, 1 failed, 2 wrong usage.",
		Run: withConfig(func(c *Config) error { return runAgent(c, errOut) }),
	}
	root.AddCommand(
		&cobra.Command{Use: "cleanup", DisableFlagParsing: true,
			Run: func(cmd *cobra.Command, args []string) {
				given := len(args)
				args = slices.DeleteFunc(args, func(a string) bool { return a == "--dry-run" })
				withConfig(func(c *Config) error { return cleanUp(c, len(args) < given, out) })(cmd, args)
			},
			Long: "cleanup removes links of pods, routes, pins, kernel settings and state that agents with these flags left on the node.\nWith --dry-run it lists them and removes nothing."},
		&cobra.Command{Use: "version", Run: func(*cobra.Command, []string) { fmt.Fprintln(out, version.String()) }},
	)
	root.SetArgs(args)
	root.CompletionOptions.DisableDefaultCmd = true
	if err := root.Execute(); err != nil {
		fail(2, err)
	}
	return exit
}

// runAgent starts the modules and stops them at a signal or the first failure.
func runAgent(cfg *Config, logTo io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("it loads programs into the kernel and needs root")
	}
	log := newLogger(cfg, logTo)
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer cancel()
	fail := make(chan error, 1)
	h := newHive(cfg, log, fail)
	log.Info("Starting", "version", version.String(), "node", cfg.NodeName)
	start, done := context.WithTimeout(ctx, startTimeout)
	err := h.Start(log, start)
	done()
	if err == nil {
		select {
		case <-ctx.Done():
			log.Info("Stopping; traffic goes on")
		case err = <-fail:
		}
	}
	stop, done := context.WithTimeout(context.Background(), stopTimeout)
	defer done()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // stopped while starting
	}
	return errors.Join(err, h.Stop(log, stop))
}

func newLogger(cfg *Config, to io.Writer) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	options := &slog.HandlerOptions{Level: levels[cfg.LogLevel]}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}
