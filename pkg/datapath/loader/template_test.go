package loader

import (
	"encoding/binary"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/testutils"
)

// realSpec compiles the project's own sources.
func realSpec(t testing.TB, shape Shape) *ebpf.CollectionSpec {
	t.Helper()
	testutils.Needs(t, testutils.Tool("clang-19"))
	logger := slog.New(slog.DiscardHandler)
	c, err := newObjectCache(t.TempDir(), nil, &compiler{source: "bpf_lxc.c", sources: os.DirFS("../../../bpf"), logger: logger}, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	cfg := wrap(configuration{Shape: shape})
	spec, err := c.produce(t.Context(), c.base.hashTemplate(cfg), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestTheTemplateIsHarmlessAndNowhereZero(t *testing.T) {
	for _, shape := range BuiltinShapes() {
		t.Run(shape.String(), func(t *testing.T) {
			spec := realSpec(t, shape)
			for name := range spec.Maps {
				if strings.HasPrefix(name, ".bss") || strings.HasPrefix(name, ".data") {
					t.Errorf("section %s: a variable is not where constants are", name)
				}
			}
			template := constants(templateEndpoint())
			seen := 0
			for name, v := range spec.Variables {
				if v.SectionName != constantSection {
					t.Errorf("variable %s is in section %s", name, v.SectionName)
					continue
				}
				seen++
				value := make([]byte, v.Size())
				if err := v.Get(&value); err != nil {
					t.Fatal(err)
				}
				if want, ok := template[name]; !ok || string(value[:len(want)]) != string(want) {
					t.Errorf("constant %s is %x in C and %x in the template", name, value, want)
				}
				for off := 0; off < len(value); off += 4 {
					var word [4]byte // a MAC's second word ends in padding
					copy(word[:], value[off:])
					if binary.NativeEndian.Uint32(word[:]) == 0 {
						t.Errorf("constant %s is zero in the word at %d: %x", name, off, value)
					}
				}
			}
			if seen != len(template) {
				t.Errorf("%d constants in the object, %d in the template", seen, len(template))
			}
		})
	}
}

func TestNothingOfTheTemplateIsLeftAfterSubstitution(t *testing.T) {
	spec := realSpec(t, both)
	e := endpoint(300)
	if err := substitute(spec, e); err != nil {
		t.Fatal(err)
	}
	want, template := constants(e), constants(templateEndpoint())
	for name, v := range spec.Variables {
		value := make([]byte, v.Size())
		if err := v.Get(&value); err != nil {
			t.Fatal(err)
		}
		if string(value[:len(want[name])]) != string(want[name]) || string(value) == string(template[name]) {
			t.Errorf("constant %s is %x, want %x", name, value, want[name])
		}
	}
}

func TestAConstantThatTheLoaderDoesNotKnowIsRefused(t *testing.T) {
	spec := realSpec(t, both)
	spec.Variables["weir_new"] = spec.Variables["weir_identity"].Copy()
	if err := substitute(spec, endpoint(3)); err == nil || !strings.Contains(err.Error(), "weir_new") {
		t.Errorf("got %v", err)
	}
	delete(spec.Variables, "weir_new")
	delete(spec.Variables, "weir_identity")
	if err := substitute(spec, endpoint(3)); err == nil || !strings.Contains(err.Error(), "weir_identity") {
		t.Errorf("got %v", err)
	}
}
