package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/lab"
)

// measurePrograms runs the loader's own benchmarks and reports what finding,
// compiling and loading cost.
func measurePrograms(ctx context.Context, _ options, r *report) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(FetchHit|FetchMiss|LoadAnEndpoint)$", "-benchtime", "1s", "./pkg/datapath/loader")
	cmd.Env = append(os.Environ(), "WEIR_KERNEL_TESTS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("the loader's benchmarks: %w: %s", err, out)
	}
	ns := map[string]float64{}
	for _, l := range strings.Split(string(out), "\n") {
		// "BenchmarkFetchHit-2   20000   55000 ns/op"
		if f := strings.Fields(l); len(f) >= 4 && f[3] == "ns/op" {
			name, _, _ := strings.Cut(strings.TrimPrefix(f[0], "Benchmark"), "-")
			if ns[name], err = strconv.ParseFloat(f[2], 64); err != nil {
				return fmt.Errorf("the loader's benchmarks printed %q", l)
			}
		}
	}
	if len(ns) != 3 {
		return fmt.Errorf("the loader's benchmarks printed %d figures, want 3: %s", len(ns), out)
	}
	r.add(line{What: "fetchOrCompile miss", Value: ns["FetchMiss"] / 1e6, Unit: "ms", Note: "clang, no kernel load"})
	r.add(line{What: "fetchOrCompile hit", Value: ns["FetchHit"] / ns["FetchMiss"], Unit: "x", Baseline: "a miss", Aim: 0.02})
	r.add(line{What: "load of an endpoint", Value: ns["LoadAnEndpoint"] / 1e6, Unit: "ms", Aim: 1, Note: "both entry programs, loaded and closed"})
	return nil
}

// verifiedAim is the most instructions that the verifier may look at in a program.
const verifiedAim = 50000

// measureVerified reports what the verifier looked at in the bodies of a running lab.
func measureVerified(l *lab.Lab, r *report) error {
	pins, err := filepath.Glob(filepath.Join(l.Record.BPFRoot, "shapes", "*", "*"))
	if err != nil {
		return err
	}
	for _, pin := range pins {
		name := filepath.Base(pin)
		if name == "calls" {
			continue
		}
		p, err := ebpf.LoadPinnedProgram(pin, nil)
		if err != nil {
			return fmt.Errorf("opening %s: %w", pin, err)
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			return fmt.Errorf("asking for %s: %w", pin, err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			return fmt.Errorf("this kernel does not tell verified instructions (it needs 5.16)")
		}
		r.add(line{What: "verified instructions, body " + name, Value: float64(n), Aim: verifiedAim})
	}
	return nil
}
