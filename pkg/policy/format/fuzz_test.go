package format_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/weirnet/weir/pkg/policy/format"
	"github.com/weirnet/weir/pkg/policy/k8s"
	"github.com/weirnet/weir/pkg/policy/types"
)

// FuzzFormat formats a text twice, and translates its policies before and after.
func FuzzFormat(f *testing.F) {
	for _, dir := range []string{"../../../examples/shop/*.yaml", "../../../cli/cmd/testdata/traps/*.yaml"} {
		files, err := filepath.Glob(dir)
		if err != nil || len(files) == 0 {
			f.Fatalf("no files in %s: %v", dir, err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Add([]byte("a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n"))
	f.Add([]byte("a: |\n  # no comment\n  text\n"))
	const head = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, annotations: {a: &a \"yes\", b: 'x: y # z', c: *a, d: |+\n text\n\n}}\n"
	f.Add([]byte(head + "spec: {podSelector: {}, ingress: [{ports: [{port: '0x10'}, {port: 080}]}]}\n"))
	f.Add([]byte("{\"apiVersion\":\"cilium.io/v2\",\"kind\":\"CiliumNetworkPolicy\",\"metadata\":{\"name\":\"p\"},\"spec\":{\"endpointSelector\":{},\"ingress\":[{\"toPorts\":[{\"ports\":[{\"port\":\"080\"}]}]}]}}"))
	f.Add([]byte("\r\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := format.Format(in)
		if err != nil {
			return // it says so, and leaves the file alone
		}
		again, err := format.Format(out)
		if err != nil {
			t.Fatalf("the formatted text is refused: %v\n%s", err, out)
		}
		if string(out) != string(again) {
			t.Fatalf("formatting again changes\n%s\nto\n%s", out, again)
		}
		want, err := meaning(in)
		if err != nil || len(want) == 0 {
			return
		}
		got, err := meaning(out)
		if err != nil || !reflect.DeepEqual(want, got) {
			t.Fatalf("%s\nmeans %+v\nformatted\n%s\nit means %+v, %v", in, want, out, got, err)
		}
	})
}

// meaning is the policies of a text by object, without the places they were read from.
func meaning(text []byte) (map[string][]*types.Policy, error) {
	docs, err := k8s.Split(text, "f")
	if err != nil {
		return nil, err
	}
	out := map[string][]*types.Policy{}
	for _, d := range docs {
		if !d.IsPolicy() {
			continue
		}
		o, err := d.Policy()
		if err != nil {
			return nil, err
		}
		ps, err := k8s.Translate(o, k8s.Options{ClusterName: "c"})
		if err != nil {
			return nil, err
		}
		for _, p := range ps {
			p.Resource.Line = 0
			for i := range p.Rules {
				p.Rules[i].Ref.Line, p.Rules[i].Ref.Resource.Line = 0, 0
			}
		}
		out[o.ID()] = append(out[o.ID()], ps...)
	}
	return out, nil
}
