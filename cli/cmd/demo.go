package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weirnet/weir/pkg/client"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/version"
)

func (a *app) labDemo(o *labOptions) *cobra.Command {
	var expected, denied, allowed string
	c := &cobra.Command{Use: "demo FOLDER", Args: exactArgs(1),
		Short: "compare the folder's truth table, from real packets, with the one expected",
		Long: "Brings the folder up, sends packets for the whole matrix, prints the table beside FOLDER/lab/expected.txt, explains a\n" +
			"denied and an allowed pair, does the same with enforcement off, where everything must pass, and takes everything down.\n" +
			"Exit code 1 where a cell differs or something is left over.",
		RunE: func(c *cobra.Command, args []string) error {
			if expected == "" {
				expected = filepath.Join(args[0], "lab", "expected.txt")
			}
			o.dir = fmt.Sprintf("%s-demo-%d", o.dir, os.Getpid())
			return a.runDemo(c.Context(), o, args[0], expected, [][2]string{{"denied", denied}, {"allowed", allowed}})
		}}
	c.Flags().StringVar(&expected, "expected", "", "the table expected (default FOLDER/lab/expected.txt)")
	c.Flags().StringVar(&denied, "denied", "ops/scanner shop/api:http", "a denied pair to explain, \"SRC DST:PORT\"")
	c.Flags().StringVar(&allowed, "allowed", "shop/frontend shop/api:http", "an allowed pair to explain")
	c.Flags().StringVar(&o.bpffs, "bpffs", "/sys/fs/bpf", "a mounted bpffs")
	return c
}

func (a *app) runDemo(ctx context.Context, o *labOptions, folder, expected string, pairs [][2]string) error {
	file, err := os.Open(expected)
	if err != nil {
		return fmt.Errorf("reading the expected table: %w", err)
	}
	defer file.Close()
	want, err := lab.ReadTables(file)
	if err != nil {
		return fmt.Errorf("%s: %w", expected, err)
	}
	before, err := takeStock(o.bpffs)
	if err != nil {
		return err
	}
	o.enforcement = "default"
	differ, err := a.demoEnforced(ctx, o, folder, want, pairs)
	if err != nil {
		return err
	}
	open, err := a.demoOpen(ctx, o.beside("-never"), folder)
	if err != nil {
		return err
	}
	left, err := before.settle(o.bpffs)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "\nleft over: %s\n", or(left))
	if left == "" {
		fmt.Fprintf(a.out, "links, pins, programs, maps, namespaces and processes are no more than before (%s)\n", before)
	}
	if differ || open || left != "" {
		return errNo
	}
	return nil
}

// demoEnforced probes with the folder's policies in force and explains the pairs.
func (a *app) demoEnforced(ctx context.Context, o *labOptions, folder string, want []lab.Table, pairs [][2]string) (differ bool, err error) {
	l, err := a.labUp(ctx, o, folder)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	p, err := a.probe(ctx, l, o.timeout)
	if err != nil {
		return false, err
	}
	fmt.Fprintln(a.out, "== truth table from real packets (. allowed, I denied at ingress, E at egress, B both, - not probed)")
	if err := p.Write(a.out); err != nil {
		return false, err
	}
	fmt.Fprintln(a.out, "\n== truth table expected")
	for _, t := range want {
		if err := t.Write(a.out); err != nil {
			return false, err
		}
		fmt.Fprintln(a.out)
	}
	diff := lab.Compare(want, p.Tables)
	for _, d := range diff {
		fmt.Fprintln(a.out, "DIFFERS:", d)
	}
	fmt.Fprintf(a.out, "== %d cells differ\n", len(diff))
	return len(diff) > 0, a.explainPairs(ctx, l, pairs)
}

// explainPairs prints one "weir why" each.
func (a *app) explainPairs(ctx context.Context, l *lab.Lab, pairs [][2]string) error {
	agent := client.New(l.Socket(), version.String())
	defer agent.Close()
	for _, pair := range pairs {
		var from, to string
		if n, _ := fmt.Sscan(pair[1], &from, &to); n != 2 {
			return usageError{fmt.Sprintf("--%s %q is not \"SRC DST:PORT\"", pair[0], pair[1])}
		}
		q, err := parseWhy(from, to)
		if err != nil {
			return err
		}
		e, err := agent.Why(ctx, q.from, q.to, q.port, q.proto)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.out, "\n== weir why %s\n%s\n", pair[1], e.Text)
	}
	return nil
}

// demoOpen probes with enforcement off: every cell must be allowed, which
// proves that the servers answer.
func (a *app) demoOpen(ctx context.Context, o *labOptions, folder string) (denied bool, err error) {
	o.enforcement = "never"
	l, err := a.labUp(ctx, o, folder)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, l.Down(context.WithoutCancel(ctx))) }()
	p, err := a.probe(ctx, l, o.timeout)
	if err != nil {
		return false, err
	}
	passed := 0
	for _, r := range p.Results {
		if r.Passed {
			passed++
			continue
		}
		denied = true
		fmt.Fprintf(a.out, "DENIED WITHOUT ENFORCEMENT: %s -> %s: %v\n", r.From.Name, r.To.Column(), r.Err)
	}
	fmt.Fprintf(a.out, "\n== with enforcement never: %d of %d cells allowed\n", passed, len(p.Results))
	return denied, nil
}
