package loader

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	// shapeHeader is the generated file that the sources include.
	shapeHeader = "shape.h"
	// maxOutput bounds what is kept of a compiler's messages, in bytes.
	maxOutput = 64 << 10
	// killWait is how long a killed compiler's children may keep its pipe open.
	killWait = 2 * time.Second
)

// compileFlags are the flags that change the object, and so its hash.
func compileFlags() []string {
	return []string{
		"-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-fno-common",
		"-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wno-unused-parameter",
		"-Wno-address-of-packed-member",
	}
}

// compiler calls clang on the embedded sources.
type compiler struct {
	path    string // of clang; empty: clang-19 or clang, whichever is found
	source  string // file to compile, for example bpf_lxc.c
	sources fs.FS
	logger  *slog.Logger
}

// compileError says that clang refused the sources.
type compileError struct {
	shape Shape
	clang string
	first string // first line of the messages that says "error"
	dir   string // build directory, kept
	err   error
}

func (e *compileError) Error() string {
	return fmt.Sprintf("compile shape %s with %s: %v: %s; sources and all messages are in %s", e.shape, e.clang, e.err, e.first, e.dir)
}

func (e *compileError) Unwrap() error { return e.err }

// find returns the path of clang, or an error that says what can be done without it.
func (c *compiler) find(shape Shape) (string, error) {
	names := []string{c.path}
	if c.path == "" {
		names = []string{"clang-19", "clang"}
	}
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("compile shape %s, which is not built in: %s: %w; install the package clang-19, or choose a shape that this binary may carry (%s) and build it with `make build`",
		shape, strings.Join(names, " or "), exec.ErrNotFound, shapeNames(BuiltinShapes()))
}

// prepare writes sources and shape header into dir.
func (c *compiler) prepare(dir string, shape Shape) error {
	err := eachSource(c.sources, func(path string, data []byte) error {
		file := filepath.Join(dir, "src", path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, data, 0o644)
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, shapeHeader), []byte(shape.header()), 0o644)
}

// object is the name of the compiled file.
func (c *compiler) object() string { return strings.TrimSuffix(c.source, ".c") + ".o" }

// run compiles in dir, which prepare has filled, and leaves the object there.
// A cancelled ctx gives an error that wraps ctx's, a refusal a *compileError.
func (c *compiler) run(ctx context.Context, dir string, shape Shape) error {
	clang, err := c.find(shape)
	if err != nil {
		return err
	}
	args := append(compileFlags(), includeFlags()...)
	args = append(args, "-c", filepath.Join("src", c.source), "-o", c.object())
	messages, err := runTool(ctx, dir, clang, args)
	if ctx.Err() != nil {
		return fmt.Errorf("compile shape %s: %w", shape, context.Cause(ctx))
	}
	first := c.logMessages(shape, messages)
	if err != nil {
		if werr := os.WriteFile(filepath.Join(dir, "clang.log"), messages, 0o644); werr != nil {
			err = errors.Join(err, werr)
		}
		return &compileError{shape: shape, clang: clang, first: first, dir: dir, err: err}
	}
	if _, err := os.Stat(filepath.Join(dir, c.object())); err != nil {
		return &compileError{shape: shape, clang: clang, first: "it reported success and wrote no object", dir: dir, err: err}
	}
	return c.strip(ctx, dir, clang)
}

// strip removes the debugging sections; the type information stays. Without
// llvm-strip beside clang the object is just larger.
func (c *compiler) strip(ctx context.Context, dir, clang string) error {
	tool, err := exec.LookPath(strings.Replace(clang, "clang", "llvm-strip", 1))
	if err != nil || tool == clang {
		return nil
	}
	if messages, err := runTool(ctx, dir, tool, []string{"-g", c.object()}); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("strip debugging sections with %s: %w: %s", tool, err, firstLine(string(messages)))
	}
	return nil
}

// logMessages logs the messages line by line and returns the first error.
func (c *compiler) logMessages(shape Shape, messages []byte) string {
	first := ""
	lines := bufio.NewScanner(bytes.NewReader(messages))
	lines.Buffer(nil, maxOutput+1)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		if first == "" || strings.Contains(line, "error:") && !strings.Contains(first, "error:") {
			first = line
		}
		c.logger.Warn("Compiler message", "shape", shape, "line", line)
	}
	if first == "" {
		return "no message"
	}
	return first
}

// runTool runs a tool in dir and returns what it wrote to standard error, cut
// at maxOutput. When ctx ends, the tool and its children are killed.
func runTool(ctx context.Context, dir, path string, args []string) ([]byte, error) {
	out := &limitedBuffer{left: maxOutput}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killWait
	err := cmd.Run()
	return out.kept.Bytes(), err
}

// includeFlags are the paths that depend on the machine and not on the shape.
// "." holds shape.h; the last ones are where Debian keeps asm/ headers.
func includeFlags() []string {
	flags := []string{"-I.", "-Isrc", "-Isrc/lib", "-fdebug-compilation-dir=."}
	if arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; arch != "" {
		flags = append(flags, "-idirafter", "/usr/include/"+arch+"-linux-gnu")
	}
	return flags
}

// limitedBuffer keeps the first bytes written to it and swallows the rest.
// The buffer is not embedded, because its ReadFrom would pass the limit by.
type limitedBuffer struct {
	kept bytes.Buffer
	left int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.kept.Write(p[:n])
	return len(p), nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}
