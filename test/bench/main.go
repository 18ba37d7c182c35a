package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// options of a run.
type options struct {
	rounds  int     // interleaved rounds of the packet figures
	seconds float64 // of one burst
	adds    int     // CNI ADDs of each plugin
	dir     string  // scratch directory for programs
	state   string  // scratch directory for what nodes keep
	bin     string  // the project's binaries
	out     string  // JSON
	only    string  // part to measure; empty: all
	chrt    string  // path of chrt; empty: not there
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 50, "interleaved rounds of the packet figures")
	flag.Float64Var(&o.seconds, "seconds", 0.2, "seconds of one burst")
	flag.IntVar(&o.adds, "adds", 60, "CNI ADDs of each plugin")
	flag.StringVar(&o.only, "only", "", "measure this part alone: programs, packets, adds or policy")
	flag.StringVar(&o.bin, "bin", "bin", "directory of weir-agent and weir-cni")
	flag.StringVar(&o.out, "out", "build/bench.json", "where to save the figures")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("it needs root: it makes network namespaces and loads programs")
	}
	if o.dir, err = os.MkdirTemp("", "weir-bench"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	if o.state, err = os.MkdirTemp(tmpfs(), "weir-bench"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.state)) }()
	o.chrt, _ = exec.LookPath("chrt") // figures are less steady without
	if err := errors.Join(buildPrograms(ctx, o.dir), install(o.bin, o.dir)); err != nil {
		return err
	}
	r := newReport()
	for _, part := range []struct {
		name string
		run  func(context.Context, options, *report) error
	}{
		{"programs", measurePrograms}, {"packets", measurePackets}, {"adds", measureAdds}, {"policy", measurePolicy},
	} {
		if o.only != "" && o.only != part.name {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", part.name)
		if err := part.run(ctx, o, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	r.print(os.Stdout)
	return r.save(o.out)
}

// tmpfs is a directory in memory, as /var/run is on a node, where the agent
// keeps its state; empty where there is none.
func tmpfs() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return ""
	}
	return "/dev/shm"
}

// install copies the binaries, as an installation does: a file as the linker
// wrote it lies in single pages in memory and starts slower.
func install(from, to string) error {
	for _, name := range []string{"weir-agent", "weir-cni"} {
		binary, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("%w; build it with: make build", err)
		}
		if err := os.WriteFile(filepath.Join(to, name), binary, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// buildPrograms compiles the load generator and the floor programs.
func buildPrograms(ctx context.Context, dir string) error {
	for _, line := range []string{
		"gcc -O2 -w -o " + dir + "/pp test/bench/load/pp.c",
		"clang-19 -O2 -g -target bpf -mcpu=v3 -I/usr/include/x86_64-linux-gnu -c test/bench/floor/redir.bpf.c -o " + dir + "/redir.o",
	} {
		words := strings.Fields(line)
		if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s (run it from the project's root; make deps installs the compilers)", words[0], err, out)
		}
	}
	return nil
}
