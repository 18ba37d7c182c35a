package node

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// traffic is what must pass and what must not, both families, until check.
type traffic struct {
	b             *box.Box
	arrive, never []*sink
	allowed       []func() int
	denied        []func() int
	flows         []func() (int, error)
}

// startTraffic sends from the client to the web pod, which may, and from the stranger,
// which may not.
func startTraffic(t *testing.T, b *box.Box, web, client, stranger *lab.AttachedPod) *traffic {
	tr := &traffic{b: b}
	tr.arrive = append(tr.arrive, newSink(t, web.Netns, udp9))
	tr.never = append(tr.never, newSink(t, web.Netns, 10))
	tr.allowed = append(tr.allowed, hammer(t, client.Netns, netip.AddrPortFrom(web.Addresses[0], udp9)))
	tr.denied = append(tr.denied, hammer(t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], 10)))
	for _, a := range web.Addresses {
		tr.flows = append(tr.flows, talk(t, client.Netns, netip.AddrPortFrom(a, 80)))
	}
	return tr
}

// check ends the traffic: nothing that is allowed was lost, nothing denied arrived.
func (tr *traffic) check(t *testing.T, when string) {
	t.Helper()
	for i, stop := range tr.allowed {
		sent := stop()
		tr.b.Eventually(fmt.Sprintf("%s: all of %d allowed datagrams arrive", when, sent), func() bool { return int(tr.arrive[i].count.Load()) == sent })
		if tr.arrive[i].close(); sent == 0 {
			t.Errorf("%s: nothing was sent", when)
		}
	}
	for i, stop := range tr.denied {
		if sent, got := stop(), tr.never[i].close(); sent == 0 || got != 0 {
			t.Errorf("%s: %d of %d denied datagrams arrived", when, got, sent)
		}
	}
	for _, stop := range tr.flows {
		if words, err := stop(); err != nil || words < 10 {
			t.Errorf("%s: an allowed connection: %d words, %v", when, words, err)
		}
	}
}

// twenty is a node with twenty endpoints in five sets of labels, three of them a trio.
func twenty(t *testing.T, root string) (b *box.Box, web, client, stranger *lab.AttachedPod) {
	t.Helper()
	return twentyOf(t, root, "")
}

// twentyOf is twenty with the binaries in a directory; empty: those of now.
func twentyOf(t *testing.T, root, binaries string) (b *box.Box, web, client, stranger *lab.AttachedPod) {
	t.Helper()
	var pods strings.Builder
	pods.WriteString(box.PodYAML("x", "web", "app=web", "http=80") + box.PodYAML("x", "client", "role=client", "") + box.PodYAML("x", "stranger", "role=other", ""))
	for i := range 17 {
		pods.WriteString(box.PodYAML("x", fmt.Sprintf("more-%d", i), fmt.Sprintf("set=%d", i%5), ""))
	}
	b = box.Start(t, box.Options{BPFRoot: root, Binaries: binaries, Files: map[string]string{"pods.yaml": pods.String(), "web.yaml": webOnly}})
	web = b.Add(lab.Pod{Namespace: "x", Name: "web", Ports: []lab.Port{http80}})
	client = b.Add(lab.Pod{Namespace: "x", Name: "client"})
	stranger = b.Add(lab.Pod{Namespace: "x", Name: "stranger"})
	if err := each(prepareAll(t, b, "more", 17), func(p *lab.AttachedPod) error { return b.Attach(t.Context(), p) }); err != nil {
		t.Fatal(err)
	}
	b.Eventually("all endpoints ready", allReady(t, b, 20))
	return b, web, client, stranger
}

// stateFiles counts the files of the agent's directories.
func stateFiles(b *box.Box) (n int, err error) {
	for _, dir := range []string{"run", "data"} {
		err = filepath.WalkDir(filepath.Join(b.Dir(), dir), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // nothing was stored there yet, or it went while we looked
			}
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// ownPolicyMaps counts the slots that hold a map of their own.
func ownPolicyMaps(t *testing.T, b *box.Box) int {
	t.Helper()
	n, err := innerMaps(filepath.Join(b.Record.BPFRoot, "maps", "weir_policy"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A node is the same after any number of restarts, half of which are kills (N03).
func TestN03ANodeIsTheSameAfterManyRestarts(t *testing.T) {
	env := testutils.Kernel(t)
	b, web, client, stranger := twenty(t, env.BPFRoot)
	restart := func(i int) {
		end := b.StopAgent
		if i%2 == 0 {
			end = b.KillAgent
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		restart(t, b)
		b.Eventually("all endpoints ready", allReady(t, b, 20))
	}
	restart(0) // what the first start left is as every start leaves it
	restart(1)
	before := quiet(t, b)
	files, err := stateFiles(b)
	if err != nil {
		t.Fatal(err)
	}
	maps := ownPolicyMaps(t, b)
	tr := startTraffic(t, b, web, client, stranger)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := times(40, 600)
	for i := range n {
		restart(random.IntN(2))
		if i%100 == 99 {
			settles(t, b, before, fmt.Sprintf("after %d restarts", i+1))
		}
	}
	tr.check(t, fmt.Sprintf("over %d restarts", n))
	settles(t, b, before, fmt.Sprintf("after %d restarts", n))
	b.Eventually("as many policy maps and state files as before", func() bool {
		now, err := stateFiles(b)
		return err == nil && now == files && ownPolicyMaps(t, b) == maps
	})
}
