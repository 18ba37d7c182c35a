package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/pkg/lab"
)

// adder is a way to attach a pod to a network.
type adder struct {
	name   string
	plugin string // path of a CNI plugin; empty: bare, the kernel's own work only
	config []byte
	node   lab.Netns
}

// measureAdds attaches and detaches pods by Weir, by the ptp plugin and by the
// bare kernel calls, in turn, each from exec to exit.
func measureAdds(ctx context.Context, o options, r *report) (err error) {
	n, err := newNode(ctx, o, "adds")
	if err != nil {
		return err
	}
	defer func() {
		if cerr := n.close(); err == nil {
			err = cerr
		}
	}()
	plain, err := lab.NewNetns(filepath.Join(o.dir, "adds", "plain"))
	if err != nil {
		return err
	}
	defer plain.Remove()
	weir, err := weirConfig(n.Lab)
	if err != nil {
		return err
	}
	ptp := []byte(`{"cniVersion":"1.0.0","name":"ptp","type":"ptp","ipMasq":false,"ipam":{"type":"host-local","dataDir":"` + o.dir +
		`/ptp","ranges":[[{"subnet":"10.98.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`)
	adders := []adder{{"ptp", "/usr/lib/cni/ptp", ptp, plain}, {"weir", n.Record.Plugin, weir, n.Node()}, {"bare", "", nil, plain}}
	add, del := map[string][]float64{}, map[string][]float64{}
	for i := range o.adds {
		for _, a := range adders {
			up, down, err := a.cycle(ctx, o, i)
			if err != nil {
				return fmt.Errorf("%s, pod %d: %w", a.name, i, err)
			}
			add[a.name], del[a.name] = append(add[a.name], up), append(del[a.name], down)
		}
	}
	for _, a := range adders {
		r.add(line{What: "CNI ADD p50, " + a.name, Value: quantile(add[a.name], 0.5), Unit: "ms", Note: fmt.Sprintf("p99 %.3g ms, DEL p50 %.3g ms, %d pods", quantile(add[a.name], 0.99), quantile(del[a.name], 0.5), o.adds)})
	}
	r.add(line{What: "CNI ADD p50", Value: median(add["weir"]) / median(add["ptp"]), Unit: "x", Baseline: "ptp", Aim: 1})
	return nil
}

// weirConfig is the plugin's entry in the list that the agent wrote.
func weirConfig(l *lab.Lab) ([]byte, error) {
	files, err := filepath.Glob(filepath.Join(l.Dir(), "cni", "*.conflist"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("the agent wrote no CNI configuration (%v)", err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	var list struct {
		CNIVersion string           `json:"cniVersion"`
		Name       string           `json:"name"`
		Plugins    []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	one := list.Plugins[0]
	one["cniVersion"], one["name"] = list.CNIVersion, list.Name
	return json.Marshal(one)
}

// cycle makes a pod's namespace, attaches and detaches it; milliseconds.
func (a adder) cycle(ctx context.Context, o options, i int) (add, del float64, err error) {
	id := fmt.Sprintf("%s-%d", a.name, i)
	pod, err := lab.NewNetns(filepath.Join(o.dir, "adds", id))
	if err != nil {
		return 0, 0, err
	}
	defer pod.Remove()
	if add, err = a.timed(ctx, "ADD", id, pod); err == nil {
		del, err = a.timed(ctx, "DEL", id, pod)
	}
	return add, del, err
}

func (a adder) timed(ctx context.Context, verb, id string, pod lab.Netns) (ms float64, err error) {
	if a.plugin == "" {
		return bare(a.node, pod, verb)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.plugin)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS="+string(pod), "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(a.plugin))
	cmd.Stdin = bytes.NewReader(a.config)
	var out []byte
	var took time.Duration
	err = a.node.Do(func() (err error) {
		start := time.Now()
		out, err = cmd.CombinedOutput()
		took = time.Since(start)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", verb, err, out)
	}
	return float64(took.Microseconds()) / 1e3, nil
}

// bare does what any plugin must: a veth with its peer in the pod, an address,
// both ends up; without a process, a program or a lease.
func bare(node, pod lab.Netns, verb string) (ms float64, err error) {
	start := time.Now()
	err = node.Do(func() error {
		if verb == "DEL" {
			l, err := netlink.LinkByName("bare0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		}
		fd, err := os.Open(string(pod))
		if err != nil {
			return err
		}
		defer fd.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "bare0"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(fd.Fd()))}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("bare0")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	if err == nil && verb == "ADD" {
		err = pod.Do(func() error { return configurePod(floorA) })
	}
	return float64(time.Since(start).Microseconds()) / 1e3, err
}
