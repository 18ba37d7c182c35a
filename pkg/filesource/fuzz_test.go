package filesource

import (
	"errors"
	"reflect"
	"testing"

	"github.com/weirnet/weir/pkg/policy/k8s"
)

// FuzzObjects reads files of objects: an error names the file, and what is taken
// is the same when it is read again and has an id for every object.
func FuzzObjects(f *testing.F) {
	for _, s := range []string{podA, podA + "---\n" + denyAll, partners + "---\n" + service + "---\n" + slice,
		"apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {addresses: [{type: InternalIP, address: 'fe80::1%eth0'}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIP: '::ffff:10.0.0.1'}\n",
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Namespace, metadata: {name: a}}, {apiVersion: v1, kind: Namespace, metadata: {name: a}}]\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text, "f", Options{ClusterName: "c", NodeName: "n"})
		if err != nil {
			var fe *k8s.FieldError
			if !errors.As(err, &fe) || fe.File != "f" {
				t.Fatalf("%v (%T) does not name the file", err, err)
			}
			return
		}
		again, err := parse(text, "f", Options{ClusterName: "c", NodeName: "n"})
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("read again: %+v, then %+v, %v", c, again, err)
		}
		objects := len(c.pods) + len(c.namespaces) + len(c.nodes) + len(c.policies) + len(c.groups) + len(c.services) + len(c.slices)
		if objects != len(c.order) || len(c.order) != len(c.lines) || objects > len(text) {
			t.Fatalf("%d objects, %d ids, %d lines", objects, len(c.order), len(c.lines))
		}
		for _, p := range c.pods {
			for _, a := range p.IPs {
				if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
					t.Fatalf("pod %s has the address %v", p.Key(), a)
				}
			}
		}
		for _, n := range c.nodes {
			for _, a := range n.Addresses {
				if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
					t.Fatalf("node %s has the address %v", n.Name, a)
				}
			}
		}
	})
}
