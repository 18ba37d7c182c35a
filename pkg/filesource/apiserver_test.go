package filesource

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/workload"
)

// servers returns the addresses of the API server's row.
func servers(tables *workload.Tables) (out []string) {
	for row := range tables.Nodes.All(tables.DB.ReadTxn()) {
		if row.APIServer {
			for _, a := range row.Addresses {
				out = append(out, a.String())
			}
		}
	}
	return out
}

// The API server is behind the endpoints of default/kubernetes, whether or not
// the Service itself is in the folder.
func TestEndpointsOfKubernetesAreTheAPIServer(t *testing.T) {
	s, _, tables, dir := newSource(t)
	of := func(namespace string) string {
		return strings.NewReplacer("namespace: shop", "namespace: "+namespace, "service-name: pay", "service-name: kubernetes").Replace(slice)
	}
	put(t, dir, "nodes.yaml", nodes)
	put(t, dir, "other.yaml", of("shop"))
	scan(t, s)
	if got := servers(tables); got != nil {
		t.Fatalf("a service of another namespace is the API server: %v", got)
	}
	put(t, dir, "kubernetes.yaml", of("default"))
	scan(t, s)
	if got := servers(tables); !slices.Equal(got, []string{"203.0.113.10", "203.0.113.11"}) {
		t.Fatalf("the API server is at %v", got)
	}
	if n := tables.Nodes.NumObjects(tables.DB.ReadTxn()); n != 3 {
		t.Fatalf("%d rows, want two nodes and the API server", n)
	}
	remove(t, dir, "kubernetes.yaml")
	later(t, s)
	if got := servers(tables); got != nil {
		t.Fatalf("the API server stays at %v", got)
	}
}

// An address is one host's: the API server takes it from another node, not from
// this one.
func TestHostsAreNodesAndTheAPIServer(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "all.yaml", nodes+"---\n"+strings.NewReplacer("namespace: shop", "namespace: default", "service-name: pay", "service-name: kubernetes",
		"203.0.113.10", "192.0.2.1", "203.0.113.11", "192.0.2.2").Replace(slice))
	snap, problems, err := Load([]string{dir}, Options{NodeName: "n1"})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	var got []string
	for _, h := range snap.Hosts() {
		got = append(got, fmt.Sprint(h.Name, h.Local, h.Addrs, h.Labels))
	}
	want := []string{
		"n1true [192.0.2.1] reserved:host",
		"n2false [fd00:1::2] reserved:remote-node",
		"kube-apiserverfalse [192.0.2.2] reserved:kube-apiserver, reserved:remote-node",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("hosts\n%s", strings.Join(got, "\n"))
	}
}
