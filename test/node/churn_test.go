package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/test/box"
)

// stock counts by name what a node holds: links, pins, kernel objects, leases,
// state folders, endpoints, identities, map entries.
type stock map[string]int

// counted are the maps whose entries belong to pods, below the pins of maps.
var counted = []string{"weir_lxc", "weir_ipcache"}

// idlePolicyMaps is how many empty policy maps a node keeps at most: 32 spares,
// one to wait for a grace period, one that all other slots share.
const idlePolicyMaps = 34

// take counts now. It returns an error while an agent is not there to be asked.
func take(t *testing.T, b *box.Box) (stock, error) {
	t.Helper()
	s := stock{}
	err := b.Node().Do(func() error {
		links, err := netlink.LinkList()
		s["links"] = len(links)
		if err != nil {
			return err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(nil, family)
			s["routes"] += len(routes)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(b.Record.BPFRoot, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			s["pins"]++
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // went while we looked
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.objects(b.Record.AgentPID); err != nil {
		return nil, err
	}
	for _, name := range counted {
		n, err := entries(filepath.Join(b.Record.BPFRoot, "maps", name))
		if err != nil {
			return nil, err
		}
		s[name] = n
	}
	policies, err := innerMaps(filepath.Join(b.Record.BPFRoot, "maps", "weir_policy"))
	if err != nil {
		return nil, err
	}
	s["policy maps beyond the spares"] = max(0, policies-idlePolicyMaps)
	dirs, err := filepath.Glob(filepath.Join(b.Dir(), "run", "state", "endpoints", "*"))
	s["state folders"] = len(dirs)
	if err != nil {
		return nil, err
	}
	queued, err := filepath.Glob(filepath.Join(b.Dir(), "run", "deleteQueue", "*.json"))
	s["queued"] = len(queued)
	if err != nil {
		return nil, err
	}
	return s, s.ask(t, b)
}

// quiet counts when nothing has changed for half a second.
func quiet(t *testing.T, b *box.Box) (s stock) {
	t.Helper()
	same := 0
	b.Eventually("the node is quiet", func() bool {
		now, err := take(t, b)
		if same++; err != nil || s == nil || len(now.differs(s)) > 0 {
			same = 0
		}
		s = now
		return same == 25
	})
	return s
}

// objects counts the BPF maps and programs that the agent has open.
func (s stock) objects(pid int) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch kind, _ := os.Readlink(filepath.Join(dir, f.Name())); kind {
		case "anon_inode:bpf-map":
			s["open maps"]++
		case "anon_inode:bpf-prog":
			s["open programs"]++
		}
	}
	return nil
}

// ask counts what only the agent knows.
func (s stock) ask(t *testing.T, b *box.Box) error {
	ipam, err := b.Agent.IPAM(t.Context())
	if err != nil {
		return err
	}
	eps, err := b.Agent.Endpoints(t.Context(), nil, nil)
	if err != nil {
		return err
	}
	ids, err := b.Agent.Identities(t.Context(), nil)
	if err != nil {
		return err
	}
	s["leases"], s["endpoints"], s["identities"] = len(ipam.Leases), len(eps), len(ids)
	return nil
}

// entries counts the keys of a pinned map.
func entries(pin string) (n int, err error) {
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	it := m.Iterate()
	for it.Next(&key, &value) {
		n++
	}
	return n, it.Err()
}

// innerMaps counts the different maps that a pinned array of maps holds.
func innerMaps(pin string) (int, error) {
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	ids := map[uint32]bool{}
	var key, id uint32
	it := m.Iterate()
	for it.Next(&key, &id) {
		ids[id] = true
	}
	return len(ids), it.Err()
}

// differs lists the counts that are not as before.
func (s stock) differs(before stock) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if s[name] != before[name] {
			out = append(out, fmt.Sprintf("%s %d, before %d", name, s[name], before[name]))
		}
	}
	return out
}

// settles waits up to five seconds until the counts are those from before.
func settles(t *testing.T, b *box.Box, before stock, when string) {
	t.Helper()
	var left string
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		now, err := take(t, b)
		if err == nil {
			diff := now.differs(before)
			if len(diff) == 0 {
				return
			}
			left = strings.Join(diff, "; ")
		} else {
			left = err.Error()
		}
		if time.Now().After(end) {
			t.Fatalf("%s, five seconds later: %s", when, left)
		}
	}
}

// prepareAll makes the namespaces of the pods named PREFIX-0 to PREFIX-(n-1).
func prepareAll(t *testing.T, b *box.Box, prefix string, n int) []*lab.AttachedPod {
	t.Helper()
	out := make([]*lab.AttachedPod, n)
	for i := range out {
		out[i] = prepare(t, b, prefix, i)
	}
	return out
}

// each calls fn for every pod, at most eight at a time, and joins the errors.
func each(pods []*lab.AttachedPod, fn func(*lab.AttachedPod) error) error {
	var g errgroup.Group
	g.SetLimit(8)
	errs := make([]error, len(pods))
	for i, p := range pods {
		g.Go(func() error { errs[i] = fn(p); return nil })
	}
	_ = g.Wait() // the functions return nil, theirs are in errs
	return errors.Join(errs...)
}

// removeAll takes the pods' namespaces away and forgets the pods.
func removeAll(t *testing.T, b *box.Box, pods []*lab.AttachedPod) {
	t.Helper()
	b.Record.Pods = slices.DeleteFunc(b.Record.Pods, func(p *lab.AttachedPod) bool { return slices.Contains(pods, p) })
	for _, p := range pods {
		if err := p.Netns.Remove(); err != nil {
			t.Fatal(err)
		}
	}
}
