package testutils

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

const clang = "clang-19"

// SharedTypes compiles bpf/lib/types.h and returns the type information of the
// named structs, for comparison with their Go twins. It needs no root; without
// clang the test is skipped, or fails if WEIR_KERNEL_TESTS=1.
func SharedTypes(t testing.TB, structs ...string) *btf.Spec {
	t.Helper()
	if err := Tool(clang).check(); err != nil {
		if os.Getenv(envRequire) == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	lib, err := sourceDir("bpf/lib")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	source.WriteString("#include \"types.h\"\n")
	for i, name := range structs {
		fmt.Fprintf(&source, "struct %s use%d;\n", name, i)
	}
	dir := t.TempDir()
	file, object := filepath.Join(dir, "types.c"), filepath.Join(dir, "types.o")
	if err := os.WriteFile(file, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-target", "bpf", "-g", "-O2", "-I", lib, "-c", file, "-o", object}
	for _, inc := range []string{"/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"} {
		args = append(args, "-idirafter", inc)
	}
	if out, err := exec.CommandContext(t.Context(), clang, args...).CombinedOutput(); err != nil {
		t.Fatalf("compile the shared types: %v\n%s", err, out)
	}
	spec, err := btf.LoadSpec(object)
	if err != nil {
		t.Fatalf("read the type information of %s: %v", object, err)
	}
	return spec
}

// sourceDir finds a directory of this repository from the test's directory.
func sourceDir(rel string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, rel), nil
		}
	}
	return "", fmt.Errorf("no go.mod above the test's directory: run it from a checkout")
}
