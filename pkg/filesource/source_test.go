package filesource

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/weirnet/weir/pkg/filesource/lastgood"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
)

// fakeRepository records what it is told.
type fakeRepository struct {
	mu       sync.Mutex
	policies map[string][]*policytypes.Policy
	revision uint64
	replaced []string
	changed  chan struct{}
}

func (f *fakeRepository) ReplaceByResource(id string, ps []*policytypes.Policy) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.policies[id] = ps
	f.replaced = append(f.replaced, id)
	f.revision++
	select {
	case f.changed <- struct{}{}:
	default:
	}
	return f.revision, nil
}

func (f *fakeRepository) DeleteByResource(id string) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.policies, id)
	f.revision++
	return f.revision, nil
}

func (f *fakeRepository) Revision() uint64 { f.mu.Lock(); defer f.mu.Unlock(); return f.revision }

func newSource(t *testing.T) (*Source, *fakeRepository, *workload.Tables, string) {
	t.Helper()
	tables, err := workload.NewTables(statedb.New())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	repo := &fakeRepository{policies: map[string][]*policytypes.Policy{}, changed: make(chan struct{}, 1)}
	s := New(Config{
		Options: Options{ClusterName: "default", NodeName: "n1"}, Dirs: []string{dir}, DataDir: t.TempDir(),
		Tables: tables, Policies: repo, Logger: slog.New(slog.DiscardHandler),
	})
	return s, repo, tables, dir
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func scan(t *testing.T, s *Source) {
	t.Helper()
	if err := s.Scan(); err != nil {
		t.Fatal(err)
	}
}

// later scans, and again when all that has to stand still has stood still.
func later(t *testing.T, s *Source) {
	t.Helper()
	scan(t, s)
	now := s.now()
	s.now = func() time.Time { return now.Add(2 * time.Second) }
	scan(t, s)
}

// remove takes a file away.
func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

const podA = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: x, labels: {app: a}}\nspec:\n  containers:\n  - name: c\n    image: i\n    ports: [{name: http, containerPort: 80}, {containerPort: 53, protocol: UDP}]\n"

const denyAll = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: x}\nspec: {podSelector: {}, policyTypes: [Ingress]}\n"

func TestAFolderBecomesRowsAndPolicies(t *testing.T) {
	s, repo, tables, dir := newSource(t)
	put(t, dir, "pods.yaml", podA+"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: x, labels: {team: red}}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: n1}]}\n")
	put(t, dir, "policy.yaml", "# comment\n"+denyAll)
	put(t, dir, "notes.txt", "not read")
	if ok, _ := tables.Synced(tables.DB.ReadTxn()); ok {
		t.Fatal("synced before the first scan")
	}
	scan(t, s)
	txn := tables.DB.ReadTxn()
	pod, _, ok := tables.Pod(txn, "x", "a")
	if !ok || pod.Labels["app"] != "a" || len(pod.NamedPorts) != 1 || pod.NamedPorts[0].Port != 80 {
		t.Fatalf("pod: %+v", pod)
	}
	if got := s.current.Ports["x/a"]; len(got) != 2 || got[1].Port != 53 {
		t.Fatalf("ports: %+v", got)
	}
	if n, ok := tables.LocalNode(txn); !ok || len(n.Addresses) != 1 {
		t.Fatalf("local node: %+v", n)
	}
	if ok, _ := tables.Synced(txn); !ok {
		t.Fatal("not synced after the first scan")
	}
	ps := repo.policies["NetworkPolicy/x/deny"]
	if len(ps) != 1 || !ps[0].IsolatesIngress || ps[0].Resource.Line != 2 || ps[0].Resource.File != filepath.Join(dir, "policy.yaml") {
		t.Fatalf("policies: %+v", ps)
	}
	before := repo.revision
	scan(t, s)
	if repo.revision != before {
		t.Fatal("an unchanged folder was applied again")
	}
	put(t, dir, "other.yaml", strings.Replace(podA, "name: a,", "name: b,", 1))
	scan(t, s)
	remove(t, dir, "policy.yaml")
	remove(t, dir, "pods.yaml")
	later(t, s)
	if _, _, ok := tables.Pod(tables.DB.ReadTxn(), "x", "a"); ok || len(repo.policies) != 0 {
		t.Fatal("what a removed file held is still there")
	}
}

func TestABadFileKeepsItsLastGoodVersionAndOthersApply(t *testing.T) {
	s, repo, tables, dir := newSource(t)
	put(t, dir, "a.yaml", denyAll)
	scan(t, s)
	put(t, dir, "a.yaml", strings.Replace(denyAll, "podSelector", "podSelektor", 1))
	put(t, dir, "b.yaml", podA)
	scan(t, s)
	if len(repo.policies) != 1 {
		t.Fatal("the last good version is gone")
	}
	if _, _, ok := tables.Pod(tables.DB.ReadTxn(), "x", "a"); !ok {
		t.Fatal("the other file did not apply")
	}
	problems := s.Problems()
	if len(problems) != 1 || problems[0].Line == 0 || !strings.Contains(problems[0].String(), "podSelektor") || !strings.Contains(problems[0].String(), "podSelector") {
		t.Fatalf("problems: %v", problems)
	}
	put(t, dir, "a.yaml", strings.Replace(denyAll, "Ingress", "Egress", 1))
	scan(t, s)
	if len(s.Problems()) != 0 || !repo.policies["NetworkPolicy/x/deny"][0].IsolatesEgress {
		t.Fatalf("a mended file does not apply: %v", s.Problems())
	}
}

// Tests of policies lie beside them and are not the agent's business, even one
// that weir policy test would refuse.
func TestTestsOfPoliciesArePassedOver(t *testing.T) {
	s, repo, _, dir := newSource(t)
	const policyTest = "apiVersion: weir.net/v1\nkind: PolicyTest\nmetadata: {name: t}\nexpekt: []\n"
	put(t, dir, "deny.yaml", denyAll+"---\n"+policyTest)
	put(t, dir, "deny_test.yaml", policyTest)
	scan(t, s)
	if len(s.Problems()) != 0 || len(repo.policies) != 1 {
		t.Fatalf("%d policies, problems %v", len(repo.policies), s.Problems())
	}
}

func TestProblemsNameFileLineAndField(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"not YAML", "a: [", "bad.yaml"},
		{"an unknown kind", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n", "bad.yaml:1: kind: Deployment (apps/v1) is not read"},
		{"an unknown field of a pod", strings.Replace(podA, "image", "imaje", 1), "imaje"},
		{"a port that is none", strings.Replace(podA, "80", "80000", 1), "ports[0].containerPort"},
		{"a protocol that is none", strings.Replace(podA, "UDP", "UDPX", 1), "ports[1].protocol"},
		{"a bad address", podA + "status: {podIP: 10.0.0.300}\n", "status.podIPs[0].ip"},
		{"the same object twice", podA + "---\n" + podA, "taken by the object in line 1"},
		{"a name that is none", strings.Replace(podA, "name: a,", "name: A_b,", 1), "metadata.name"},
		{"a field that comes later", denyAll + "---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: later}\nspec:\n  endpointSelector: {}\n  egress: [{toFQDNs: [{matchName: a.example}]}]\n", "toFQDNs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, repo, _, dir := newSource(t)
			put(t, dir, "bad.yaml", tt.text)
			scan(t, s)
			if len(s.Problems()) == 0 || !strings.Contains(s.Problems()[0].String(), tt.want) {
				t.Fatalf("got %v, want %q", s.Problems(), tt.want)
			}
			if len(repo.policies) != 0 {
				t.Fatal("a part of a bad file was applied")
			}
		})
	}
}

func TestTheFirstFileKeepsAnObjectThatTwoHold(t *testing.T) {
	s, repo, _, dir := newSource(t)
	put(t, dir, "a.yaml", denyAll)
	put(t, dir, "b.yaml", strings.Replace(denyAll, "Ingress", "Egress", 1))
	scan(t, s)
	if !repo.policies["NetworkPolicy/x/deny"][0].IsolatesIngress || len(s.Problems()) != 1 || s.Problems()[0].File != filepath.Join(dir, "b.yaml") {
		t.Fatalf("%v", s.Problems())
	}
	remove(t, dir, "a.yaml")
	scan(t, s)
	if !repo.policies["NetworkPolicy/x/deny"][0].IsolatesEgress || len(s.Problems()) != 0 {
		t.Fatal("the second file did not take over")
	}
}

func TestPoliciesPutThroughTheAPISurviveARestart(t *testing.T) {
	s, repo, _, dir := newSource(t)
	cnp := "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: more, namespace: x}\nspec:\n  endpointSelector: {}\n  ingress: [{fromEndpoints: []}]\n"
	policies, _, problems, err := s.Put([]byte(denyAll+"---\n"+cnp), "stdin")
	if err != nil || len(problems) != 0 || len(policies) != 2 {
		t.Fatal(policies, problems, err)
	}
	again := New(s.cfg)
	scan(t, again)
	rule := repo.policies["CiliumNetworkPolicy/x/more"][0].Rules[0]
	if rule.Peers == nil || len(rule.Peers) != 0 {
		t.Fatalf("an empty list of peers came back as %v", rule.Peers)
	}
	if _, _, problems, _ := again.Put([]byte(denyAll+"---\n"+strings.Replace(cnp, "ingress:", "ingres:", 1)), "stdin"); len(problems) == 0 {
		t.Fatal("a wrong policy was taken")
	}
	if _, _, err := again.Delete("NetworkPolicy", "x", "deny"); err != nil || len(repo.policies) != 1 {
		t.Fatal(err, repo.policies)
	}
	if _, _, err := again.Delete("NetworkPolicy", "x", "deny"); err == nil {
		t.Fatal("a policy was deleted twice")
	}
	put(t, dir, "a.yaml", denyAll)
	scan(t, again)
	if _, _, _, err := again.Put([]byte(denyAll), "stdin"); err == nil || !strings.Contains(err.Error(), "a.yaml") {
		t.Fatalf("a policy of a watched folder was replaced: %v", err)
	}
	if _, _, err := again.Delete("NetworkPolicy", "x", "deny"); err == nil {
		t.Fatal("a policy of a watched folder was deleted")
	}
}

func TestTheWatchAppliesAChangedFile(t *testing.T) {
	s, repo, _, dir := newSource(t)
	scan(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	put(t, dir, "a.yaml", denyAll)
	<-repo.changed
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(podA + "---\n" + denyAll))
	f.Add([]byte(partners + "---\n" + service + "---\n" + slice + "---\n" + egressTo("p", "toServices: [{k8sService: {serviceName: pay, namespace: shop}}]")))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text, "f", Options{})
		if (c == nil) == (err == nil) {
			t.Fatal("neither contents nor an error, or both")
		}
	})
}

type policytypesPolicy = policytypes.Policy

func newTables(t *testing.T) *workload.Tables {
	t.Helper()
	tables, err := workload.NewTables(statedb.New())
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// folderIDs opens the store and returns the identities of the first source's folders.
func (s *Source) folderIDs() map[string]lastgood.Identity {
	if err := s.open(); err != nil {
		panic(err)
	}
	return s.store.Index().Sources[s.cfg.Dirs[0]].Dirs
}
