package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/weirnet/weir/cli/trial"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/policy/casefile"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/policy/testfile"
)

// openKernel makes the maps of a node below the bpffs. done takes them away.
func (r *testRun) openKernel() (done func() error, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("--kernel loads programs into the kernel: run it as root, or leave it out")
	}
	if err := bpf.CheckFS(r.bpffs); err != nil {
		return nil, fmt.Errorf("--bpffs: %w", err)
	}
	fs, err := os.MkdirTemp(r.bpffs, "weir-policy-test-")
	if err != nil {
		return nil, fmt.Errorf("--bpffs: %w", err)
	}
	objects, err := os.MkdirTemp("", "weir-policy-test-")
	if err != nil {
		return nil, errors.Join(err, os.Remove(fs))
	}
	remove := func() error { return errors.Join(os.RemoveAll(fs), os.RemoveAll(objects)) }
	node, err := trial.Open(fs, objects)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the maps of a node below %s: %w", fs, err), remove())
	}
	r.judge = trial.NewJudge(node)
	return func() error { return errors.Join(node.Close(), remove()) }, nil
}

// by chooses who answers for the cells of policy cases.
func (r *testRun) by(ctx context.Context) func(*simulate.Cluster) (casefile.Ask, error) {
	if r.judge == nil {
		return casefile.ByMapState
	}
	return func(c *simulate.Cluster) (casefile.Ask, error) {
		if err := r.judge.Take(ctx, c); err != nil {
			return nil, fmt.Errorf("filling the kernel's maps: %w", err)
		}
		return r.judge.Ask, nil
	}
}

// askKernel sends the packets of answers and says where the kernel differs.
func (r *testRun) askKernel(c *simulate.Cluster, answers []testfile.Answer) string {
	for _, answer := range answers {
		e := answer.Explanation
		egress, ingress, err := r.judge.Ask(c.End(e.From.Addr), c.End(e.To.Addr), e.Proto, e.Port)
		if err != nil {
			return answer.Family + ": the kernel: " + err.Error()
		}
		var differ []string
		for _, side := range []struct {
			want *explain.Judgement
			got  simulate.Side
		}{{e.Egress, egress}, {e.Ingress, ingress}} {
			if side.want != nil && (side.got.Verdict != side.want.Verdict || side.got.Rule.Key() != side.want.Rule.Ref.Key()) {
				differ = append(differ, fmt.Sprintf("%s: the kernel says %s by %s", side.want.Direction, side.got.Verdict, side.got.Rule))
			}
		}
		if differ != nil {
			return answer.Family + ": " + strings.Join(differ, "; ")
		}
	}
	return ""
}
