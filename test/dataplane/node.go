package dataplane

import (
	"testing"

	"github.com/weirnet/weir/cli/trial"
	"github.com/weirnet/weir/pkg/endpoint/plan"
)

// Node is a data plane that fails its test where it cannot go on.
type Node struct {
	*trial.Node
	t testing.TB
}

// Open makes the maps below a directory of a bpffs and takes them away with the
// test's end.
func Open(t testing.TB, fs string) *Node {
	t.Helper()
	n, err := trial.Open(fs, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Node{n, t}
}

// Load loads the programs of an endpoint.
func (n *Node) Load(layout plan.Layout) *trial.Endpoint {
	n.t.Helper()
	e, err := n.Node.Load(n.t.Context(), layout)
	if err != nil {
		n.t.Fatal(err)
	}
	return e
}
