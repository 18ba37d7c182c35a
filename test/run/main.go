package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"
)

// event is a line of "go test -json" (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// results counts the top-level tests and keeps the output of what may fail.
type results struct {
	outcome map[string]string // "package.Test" to pass, fail or skip
	output  map[string][]string
	failed  []string // packages and tests, in order of failing
}

func main() {
	patterns := os.Args[1:]
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	if err := run(patterns); err != nil {
		fmt.Fprintln(os.Stderr, "make test:", err)
		os.Exit(1)
	}
}

func run(patterns []string) error {
	callers, err := kernelTests(patterns)
	if err != nil {
		return err
	}
	// Packages run one after the other: kernel and lab tests share two cores.
	args := append([]string{"test", "-json", "-count=1", "-p", "1", "-timeout", "40m"}, patterns...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "WEIR_KERNEL_TESTS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting go test: %w", err)
	}
	res, err := collect(out)
	waitErr := cmd.Wait()
	if err != nil {
		return err
	}
	return report(res, callers, waitErr)
}

// collect reads the events to the end and prints a line per package.
func collect(r io.Reader) (*results, error) {
	res := &results{outcome: map[string]string{}, output: map[string][]string{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 1<<20), 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Println(sc.Text()) // build errors come as plain text
			continue
		}
		res.add(e)
	}
	return res, sc.Err()
}

func (r *results) add(e event) {
	key := e.Package + "." + e.Test
	switch e.Action {
	case "output", "build-output":
		r.output[key] = append(r.output[key], e.Output)
		if e.Action == "build-output" {
			fmt.Print(e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			if e.Action != "skip" {
				fmt.Printf("%-4s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
			}
			if e.Action == "fail" {
				r.failed = append(r.failed, key)
			}
			return
		}
		if !strings.Contains(e.Test, "/") {
			r.outcome[key] = e.Action
		}
		if e.Action == "fail" {
			r.failed = append(r.failed, key)
		} else {
			delete(r.output, key)
		}
	}
}

// report prints what failed and the closing lines.
func report(res *results, callers []string, waitErr error) error {
	for _, key := range res.failed {
		fmt.Printf("\n--- output of %s\n%s", key, strings.Join(res.output[key], ""))
	}
	var passed, failed, skipped int
	for _, o := range res.outcome {
		switch o {
		case "pass":
			passed++
		case "fail":
			failed++
		case "skip":
			skipped++
		}
	}
	var ran, left []string
	for _, c := range callers {
		if o := res.outcome[c]; o == "pass" || o == "fail" {
			ran = append(ran, c)
		} else {
			left = append(left, c)
		}
	}
	sort.Strings(left)
	for _, c := range left {
		fmt.Printf("kernel test not run: %s\n", c)
	}
	fmt.Printf("\nkernel tests: %d tests call testutils.Kernel, %d ran, %d did not\n", len(callers), len(ran), len(left))
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	switch {
	case failed > 0 || waitErr != nil:
		return fmt.Errorf("tests failed; their output is above (%v)", waitErr)
	case len(left) > 0:
		return fmt.Errorf("%d kernel tests did not run; run as root on a kernel with BPF, and see the lines above", len(left))
	case passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}
