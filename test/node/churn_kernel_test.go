package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

const churned = 100 // pods of one node

// manyPods is a node whose pods churn-N exist as objects, with ten label sets
// and a policy for each of two roles.
func manyPods(t *testing.T, root string, flags ...string) *box.Box {
	var pods strings.Builder
	for i := range churned {
		pods.WriteString(box.PodYAML("x", fmt.Sprintf("churn-%d", i), fmt.Sprintf("role=%s,set=%d", []string{"closed", "open", "free"}[i%3], i%10), ""))
	}
	return box.Start(t, box.Options{BPFRoot: root, Files: map[string]string{"pods.yaml": pods.String(), "policies.yaml": closedAndOpen}, AgentFlags: flags})
}

// Nothing is left of 100 pods that come and go three times, on two nodes at once (B52).
func TestB52ChurnOfTwoNodesLeavesNothing(t *testing.T) {
	env := testutils.Kernel(t)
	boxes := []*box.Box{manyPods(t, filepath.Join(env.BPFRoot, "1")), manyPods(t, filepath.Join(env.BPFRoot, "2"))}
	before := make([]stock, len(boxes))
	for i, b := range boxes {
		before[i] = quiet(t, b)
		if before[i]["pins"] == 0 || before[i]["open maps"] == 0 || before[i]["endpoints"] != 0 {
			t.Fatalf("an idle node holds %v", before[i])
		}
	}
	for round := range 3 {
		var g errgroup.Group
		for _, b := range boxes {
			pods := prepareAll(t, b, "churn", churned)
			g.Go(func() error {
				return each(pods, func(p *lab.AttachedPod) error { return b.Attach(t.Context(), p) })
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, b := range boxes {
			full, err := take(t, b)
			if err != nil {
				t.Fatal(err)
			}
			if full["endpoints"] != churned || full["leases"] != churned || full["state folders"] != churned || full["links"] != before[i]["links"]+churned || full["weir_lxc"] < 2*churned {
				t.Fatalf("round %d: with %d pods node %d holds %v", round, churned, i, full)
			}
		}
		for _, b := range boxes {
			g.Go(func() error {
				return each(b.Record.Pods, func(p *lab.AttachedPod) error { return b.Detach(t.Context(), p) })
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, b := range boxes {
			removeAll(t, b, append([]*lab.AttachedPod(nil), b.Record.Pods...))
			settles(t, b, before[i], fmt.Sprintf("round %d, node %d", round, i))
		}
	}
}
