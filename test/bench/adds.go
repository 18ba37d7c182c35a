package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/weirnet/weir/pkg/lab"
)

// ptpPlugin is where Debian's containernetworking-plugins puts the plugin that
// Weir's ADD is compared with.
const ptpPlugin = "/usr/lib/cni/ptp"

// adder is a way to attach a pod to a network. Both functions return
// milliseconds.
type adder struct {
	name     string
	add, del func(ctx context.Context, id string, pod lab.Netns) (float64, error)
}

// measureAdds attaches and detaches pods by Weir, by the ptp plugin and by the
// bare kernel calls, in turn, each plugin from exec to exit.
func measureAdds(ctx context.Context, o options, r *report) (err error) {
	var end teardown
	defer func() { err = errors.Join(err, end.run()) }()
	n, err := newNode(ctx, o, "adds", "--ipv4-pool=10.99.0.0/16") // one family, as ptp
	if err != nil {
		return err
	}
	end = append(end, n.close)
	weir, err := n.PluginConfig()
	if err != nil {
		return err
	}
	plain, err := lab.NewNetns(filepath.Join(o.state, "pods", "plain"))
	if err != nil {
		return err
	}
	end = append(end, plain.Remove)
	b, err := newBare(o, plain)
	if err != nil {
		return err
	}
	end = append(end, b.close)
	ptp, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "ptp", "type": "ptp", "ipMasq": false, "ipam": map[string]any{
		"type": "host-local", "dataDir": filepath.Join(o.state, "ptp"), "ranges": [][]map[string]string{{{"subnet": "10.98.0.0/16"}}},
		"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
	}})
	if err != nil {
		return err
	}
	adders := []adder{
		plugin("ptp", ptpPlugin, ptp, plain), plugin("weir", n.Record.Plugin, weir, n.Node()), b.adder(false), b.adder(true),
	}
	add, del := map[string][]float64{}, map[string][]float64{}
	for i := range o.adds {
		for _, a := range adders {
			up, down, err := a.cycle(ctx, o, i)
			if err != nil {
				return fmt.Errorf("%s, pod %d: %w", a.name, i, err)
			}
			add[a.name], del[a.name] = append(add[a.name], up), append(del[a.name], down)
		}
		slices.Reverse(adders)
	}
	reportAdds(add, del, r)
	return nil
}

func reportAdds(add, del map[string][]float64, r *report) {
	for _, verb := range []struct {
		name string
		ms   map[string][]float64
	}{{"ADD", add}, {"DEL", del}} {
		for _, name := range []string{"ptp", "weir", bareName, bareTCXName} {
			ms := verb.ms[name]
			r.add(line{What: fmt.Sprintf("CNI %s p50, %s", verb.name, name), Value: quantile(ms, 0.5), Unit: "ms",
				Note: fmt.Sprintf("p99 %.3g ms; %s", quantile(ms, 0.99), spread(ms))})
		}
	}
	for _, q := range []struct {
		name string
		q    float64
		aim  float64
	}{{"p50", 0.5, 1}, {"p99", 0.99, 0}} {
		r.add(line{What: "weir CNI ADD " + q.name, Value: quantile(add["weir"], q.q) / quantile(add["ptp"], q.q), Unit: "x", Baseline: "ptp", Aim: q.aim})
	}
	r.add(line{What: "weir CNI DEL p50", Value: quantile(del["weir"], 0.5) / quantile(del["ptp"], 0.5), Unit: "x", Baseline: "ptp"})
}

// cycle makes a pod's namespace, attaches and detaches it; milliseconds.
func (a adder) cycle(ctx context.Context, o options, i int) (add, del float64, err error) {
	id := fmt.Sprintf("%s-%d", a.name, i)
	pod, err := lab.NewNetns(filepath.Join(o.state, "pods", id))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, pod.Remove()) }()
	if add, err = a.add(ctx, id, pod); err == nil {
		del, err = a.del(ctx, id, pod)
	}
	return add, del, err
}

// plugin attaches by a CNI plugin that is run in the namespace of a node.
func plugin(name, path string, config []byte, node lab.Netns) adder {
	verb := func(verb string) func(context.Context, string, lab.Netns) (float64, error) {
		return func(ctx context.Context, id string, pod lab.Netns) (ms float64, err error) {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, path)
			cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS="+string(pod), "CNI_IFNAME=eth0",
				"CNI_PATH="+filepath.Dir(path), "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=client")
			cmd.Stdin = bytes.NewReader(config)
			var out []byte
			err = node.Do(func() (err error) {
				ms, err = timed(func() (err error) {
					out, err = cmd.CombinedOutput()
					return err
				})
				return err
			})
			if err != nil {
				return 0, fmt.Errorf("%s: %w: %s", verb, err, out)
			}
			return ms, nil
		}
	}
	return adder{name, verb("ADD"), verb("DEL")}
}
