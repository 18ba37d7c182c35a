package node

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/lab"
	"github.com/weirnet/weir/pkg/testutils"
	"github.com/weirnet/weir/test/box"
)

// town is a node with ten pods, of which a client talks to a web pod all the time,
// and a stranger, who may not, tries to.
type town struct {
	*box.Box
	t     *testing.T
	pods  []*lab.AttachedPod // web, client, stranger and others
	facts string

	allowed, denied         *sink
	stopAllowed, stopDenied func() int
	stopLong                func() (int, error)
	added                   int
}

const (
	townPods = 10
	udp10    = 10
)

func newTown(t *testing.T, env *testutils.Env) *town {
	t.Helper()
	yaml := box.PodYAML("x", "web", "app=web", "http=80") + box.PodYAML("x", "client", "role=client", "") + box.PodYAML("x", "stranger", "role=other", "")
	for i := range 400 {
		yaml += box.PodYAML("x", fmt.Sprintf("extra-%d", i), fmt.Sprintf("set=%d", i%7), "")
	}
	w := &town{t: t, Box: box.Start(t, box.Options{BPFRoot: env.BPFRoot, Files: map[string]string{"pods.yaml": yaml, "web.yaml": webOnly}})}
	for _, p := range []lab.Pod{{Name: "web", Ports: []lab.Port{http80}}, {Name: "client"}, {Name: "stranger"}} {
		p.Namespace = "x"
		w.pods = append(w.pods, w.Add(p))
	}
	for len(w.pods) < townPods {
		w.pods = append(w.pods, w.Add(lab.Pod{Namespace: "x", Name: fmt.Sprintf("extra-%d", len(w.pods))}))
	}
	w.added = townPods
	w.Eventually("all endpoints ready", allReady(t, w.Box, townPods))
	w.facts = facts(t, w.Box)
	return w
}

// talking begins to send; still ends it and checks that nothing was lost nor let through.
func (w *town) talking() {
	web, client, stranger := w.pods[0], w.pods[1], w.pods[2]
	w.allowed, w.denied = newSink(w.t, web.Netns, udp10), newSink(w.t, web.Netns, udp9)
	w.stopAllowed = hammer(w.t, client.Netns, netip.AddrPortFrom(web.Addresses[0], udp10))
	w.stopDenied = hammer(w.t, stranger.Netns, netip.AddrPortFrom(web.Addresses[0], udp9))
	w.stopLong = talk(w.t, client.Netns, netip.AddrPortFrom(web.Addresses[1], 80))
	soon(w.t, "allowed datagrams arrive", func() bool { return w.allowed.count.Load() > 10 })
}

func (w *town) still(when string) {
	w.t.Helper()
	sent, tried := w.stopAllowed(), w.stopDenied()
	for range 200 {
		if int(w.allowed.count.Load()) >= sent {
			break
		}
		w.allowed.settle()
	}
	if got := w.allowed.close(); got != sent {
		w.t.Errorf("%s: %d of %d allowed datagrams were lost", when, sent-got, sent)
	}
	if got := w.denied.close(); got != 0 || tried == 0 {
		w.t.Errorf("%s: %d of %d denied datagrams arrived", when, got, tried)
	}
	if words, err := w.stopLong(); err != nil {
		w.t.Errorf("%s: the open connection was cut after %d words: %v", when, words, err)
	}
}

// restartWith kills the agent, lets damage do its work, starts it and checks that all
// endpoints are what they were.
func (w *town) restartWith(what string, damage func()) {
	w.t.Helper()
	if err := w.KillAgent(); err != nil {
		w.t.Fatal(err)
	}
	damage()
	if err := w.StartAgent(); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	if err := box.WaitReady(w.Socket()); err != nil {
		w.t.Fatalf("%s: the agent does not start: %v", what, err)
	}
	var last string
	for range 500 {
		if last = facts(w.t, w.Box); last == w.facts {
			return
		}
		w.allowed.settle()
	}
	w.t.Fatalf("%s: before\n%safter\n%s", what, w.facts, last)
}

// addOne attaches one more pod, which must get nothing that a living link has, and
// takes it away.
func (w *town) addOne(what string) {
	w.t.Helper()
	used, numbers := map[string]string{}, map[uint16]string{}
	for _, e := range w.endpoints() {
		used[e.Addressing.Ipv4], used[e.Addressing.Ipv6], numbers[e.ID] = e.Pod.Name, e.Pod.Name, e.Pod.Name
	}
	if len(numbers) != townPods {
		w.t.Fatalf("%s: %d endpoints before the ADD", what, len(numbers))
	}
	p, err := w.AddPod(w.t.Context(), lab.Pod{Namespace: "x", Name: fmt.Sprintf("extra-%d", w.added)})
	if err != nil {
		w.t.Fatalf("%s: ADD: %v", what, err)
	}
	w.added++
	for _, a := range p.Addresses {
		if who, taken := used[a.String()]; taken {
			w.t.Errorf("%s: an ADD got %s, which pod %s has", what, a, who)
		}
	}
	for _, e := range w.endpoints() {
		if e.Pod.Name == p.Name {
			if who, taken := numbers[e.ID]; taken {
				w.t.Errorf("%s: an ADD got number %d, which pod %s has", what, e.ID, who)
			}
		}
	}
	if err := w.DelPod(w.t.Context(), p.Key()); err != nil {
		w.t.Fatalf("%s: DEL: %v", what, err)
	}
}

func (w *town) endpoints() []gen.Endpoint {
	w.t.Helper()
	eps, err := w.Agent.Endpoints(w.t.Context(), nil, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return eps
}

// number is that of a pod's endpoint.
func (w *town) number(pod string) uint16 {
	w.t.Helper()
	for _, e := range w.endpoints() {
		if e.Pod.Name == pod {
			return e.ID
		}
	}
	w.t.Fatalf("no endpoint of pod %s", pod)
	return 0
}

// stateFiles are the files of state, one of each kind, and the record of the web pod.
func (w *town) stateFiles() []string {
	w.t.Helper()
	record := filepath.Join(w.Dir(), "run", "state", "endpoints", fmt.Sprint(w.number("web")), "endpoint.json")
	kinds := map[string]bool{"endpoint.json": true}
	files := []string{record}
	for _, dir := range []string{"run", "data"} {
		err := filepath.WalkDir(filepath.Join(w.Dir(), dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || kinds[d.Name()] || atomicfile.IsAside(path) || strings.Contains(path, "/policies") || strings.Contains(path, "/sources") || strings.Contains(path, ".bad-") {
				return err
			}
			kinds[d.Name()] = true
			files = append(files, path)
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	slices.Sort(files[1:])
	return files
}

// damages are the ways in which a file is damaged, in this order.
var damages = []string{"removed", "garbage", "empty", "cut", "zeroed", "null", "{}", "newer", "directory"}

var bootWord = regexp.MustCompile(`"boot-id"\s*:\s*"[^"]+"`)

var versionWord = regexp.MustCompile(`"version"\s*:\s*\d+`)

func damage(t *testing.T, path, how string) {
	t.Helper()
	text, _ := os.ReadFile(path) // a socket has none
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	switch how {
	case "removed":
		return
	case "directory":
		if err := os.MkdirAll(filepath.Join(path, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		return
	case "garbage":
		text = []byte("\x7f\x00 not what it was \xff{{[")
	case "empty":
		text = nil
	case "cut":
		text = text[:len(text)/2]
	case "zeroed":
		text = make([]byte, len(text))
	case "null", "{}":
		text = []byte(how)
	case "newer":
		text = versionWord.ReplaceAll(text, []byte(`"version":99,"of-the-future":{"x":[1]}`))
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// told reports whether the status names what was set aside for a file.
func (w *town) told(file string) bool {
	w.t.Helper()
	return slices.ContainsFunc(warnings(w.t, w.Box, "set-aside"), func(c gen.Component) bool {
		return strings.HasPrefix(c.Subject, file+".bad-") && c.Next != ""
	})
}

// tidy removes what was set aside.
func (w *town) tidy() {
	w.t.Helper()
	all, err := atomicfile.ListAside(w.Dir())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range all {
		if err := os.RemoveAll(a.Path); err != nil {
			w.t.Fatal(err)
		}
	}
}

// isJSON reports whether a file of this name is state that says something.
func isJSON(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && filepath.Ext(path) == ".json" && json.Valid(text)
}
