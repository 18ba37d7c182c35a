package testutils

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

const clang = "clang-19"

// SameStructs compares Go structs with the structs of bpf/lib/types.h that have
// these names. It needs no root; without clang the test is skipped, or fails if
// WEIR_KERNEL_TESTS=1.
func SameStructs(t testing.TB, twins map[string]any) {
	t.Helper()
	types := sharedTypes(t, slices.Sorted(maps.Keys(twins))...)
	for name, twin := range twins {
		if err := sameStruct(types, name, twin); err != nil {
			t.Error(err)
		}
	}
}

// sharedTypes compiles bpf/lib/types.h and returns the type information of the
// named structs.
func sharedTypes(t testing.TB, structs ...string) *btf.Spec {
	t.Helper()
	source := "#include \"types.h\"\n"
	for i, name := range structs {
		source += fmt.Sprintf("struct %s use%d;\n", name, i)
	}
	object := compile(t, source)
	spec, err := btf.LoadSpec(object)
	if err != nil {
		t.Fatalf("read the type information of %s: %v", object, err)
	}
	return spec
}

// sameStruct compares a Go struct with the C struct of that name in types:
// the size of both and the offset, size and number of their fields, in order.
// An anonymous union of C counts as one field. Sizes are in bytes.
func sameStruct(types *btf.Spec, name string, twin any) error {
	var c *btf.Struct
	if err := types.TypeByName(name, &c); err != nil {
		return fmt.Errorf("look for struct %s in the object's type information: %w", name, err)
	}
	g := reflect.TypeOf(twin)
	if int(c.Size) != int(g.Size()) {
		return fmt.Errorf("struct %s has %d bytes in C and %d in Go (%s); make them equal", name, c.Size, g.Size(), g)
	}
	if len(c.Members) != g.NumField() {
		return fmt.Errorf("struct %s has %d fields in C and %d in Go (%s); make them equal", name, len(c.Members), g.NumField(), g)
	}
	for i, m := range c.Members {
		f := g.Field(i)
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			return fmt.Errorf("size of field %s of struct %s: %w", m.Name, name, err)
		}
		if int(m.Offset.Bytes()) != int(f.Offset) || size != int(f.Type.Size()) {
			return fmt.Errorf("struct %s: field %s is at %d with %d bytes in C, %s is at %d with %d bytes in Go; make them equal",
				name, m.Name, m.Offset.Bytes(), size, f.Name, f.Offset, f.Type.Size())
		}
	}
	return nil
}

// sharedMap compiles bpf/lib/maps.h for both families and returns the
// definition of a map.
func sharedMap(t testing.TB, name string) *ebpf.MapSpec {
	t.Helper()
	object := compile(t, "#define ENABLE_IPV4\n#define ENABLE_IPV6\n#include \"maps.h\"\n")
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		t.Fatalf("read the maps of %s: %v", object, err)
	}
	m := spec.Maps[name]
	if m == nil {
		t.Fatalf("bpf/lib/maps.h defines no map %s", name)
	}
	return m
}

// SameMap compares a map's definition in Go with that in
// bpf/lib/maps.h. It skips as SameStructs does.
func SameMap(t testing.TB, want *ebpf.MapSpec) {
	t.Helper()
	c := sharedMap(t, want.Name)
	type layout struct {
		Type                    ebpf.MapType
		Key, Value, Room, Flags uint32
	}
	of := func(m *ebpf.MapSpec) layout { return layout{m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags} }
	if of(c) != of(want) {
		t.Errorf("map %s is %+v in C and %+v in Go; make them equal", want.Name, of(c), of(want))
	}
	if c.InnerMap != nil && want.InnerMap != nil && of(c.InnerMap) != of(want.InnerMap) {
		t.Errorf("the inner map of %s is %+v in C and %+v in Go; make them equal", want.Name, of(c.InnerMap), of(want.InnerMap))
	}
}

// compile makes an object of source, which may include the headers of bpf/lib.
func compile(t testing.TB, source string) string {
	t.Helper()
	Needs(t, Tool(clang))
	lib, err := sourceDir("bpf/lib")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, object := filepath.Join(dir, "test.c"), filepath.Join(dir, "test.o")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-target", "bpf", "-mcpu=v3", "-g", "-O2", "-I", lib, "-c", file, "-o", object}
	for _, dir := range []string{"/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"} {
		args = append(args, "-idirafter", dir)
	}
	if out, err := exec.CommandContext(t.Context(), clang, args...).CombinedOutput(); err != nil {
		t.Fatalf("compile the shared headers: %v\n%s", err, out)
	}
	return object
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
