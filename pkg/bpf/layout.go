package bpf

import (
	"fmt"
	"reflect"

	"github.com/cilium/ebpf/btf"
)

// CheckStruct compares a Go struct with the C struct of that name in types:
// the size of both and the offset, size and number of their fields, in order.
// An anonymous union of C counts as one field. Sizes are in bytes.
func CheckStruct(types *btf.Spec, name string, twin any) error {
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
