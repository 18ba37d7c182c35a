package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/workload"
)

// book records who is who, as "resource: identity or labels" by prefix.
type book struct {
	mu sync.Mutex
	m  map[string]string
	n  int // calls
}

func (b *book) UpsertMetadata(p netip.Prefix, src ipcache.Source, resource string, m ipcache.Metadata) {
	b.mu.Lock()
	defer b.mu.Unlock()
	who := m.Labels.String()
	if m.Identity != 0 {
		who = m.Identity.String()
	}
	b.m[p.String()+" "+resource] = src.String() + " " + who
	b.n++
}

func (b *book) RemoveMetadata(p netip.Prefix, resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.m, p.String()+" "+resource)
	b.n++
}

func (b *book) is(want map[string]string) func() bool {
	return func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return fmt.Sprint(want) == fmt.Sprint(b.m)
	}
}

// fakeKernel is a kernel whose addresses a test sets.
type fakeKernel struct {
	mu     sync.Mutex
	now    []netip.Addr
	err    error
	moved  chan struct{}
	closed bool
}

func (k *fakeKernel) list() ([]netip.Addr, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now, k.err
}
func (k *fakeKernel) changes(context.Context) (<-chan struct{}, error) { return k.moved, nil }
func (k *fakeKernel) close()                                           { k.closed = true }

func (k *fakeKernel) set(as ...string) {
	k.mu.Lock()
	k.now = addrs(as...)
	k.mu.Unlock()
	k.moved <- struct{}{}
}

func addrs(as ...string) (out []netip.Addr) {
	for _, a := range as {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func setUp(t *testing.T) (*Node, *fakeKernel, *book, *workload.Tables) {
	tables, err := workload.NewTables(statedb.New())
	require.NoError(t, err)
	b, k := &book{m: map[string]string{}}, &fakeKernel{moved: make(chan struct{}, 1)}
	n := newNode(Config{Logger: slog.New(slog.DiscardHandler), Name: "n1", Cluster: "c", Filter: labels.DefaultFilter(), Tables: tables, Book: b}, k)
	return n, k, b, tables
}

func write(tables *workload.Tables, f func(*workload.Txn)) {
	w := tables.Write()
	defer w.Abort()
	f(w)
	w.Commit()
}

func eventually(t *testing.T, ok func() bool, b *book) {
	require.Eventually(t, ok, 10*time.Second, time.Millisecond, "it is %v", b.m)
}

func TestEverybodyButLocalEndpointsIsTold(t *testing.T) {
	n, k, b, tables := setUp(t)
	k.now = addrs("192.0.2.1", "fd00:1::1")
	write(tables, func(w *workload.Txn) {
		w.PutNode(&workload.Node{Name: "n1", Addresses: addrs("203.0.113.1"), Local: true})
		w.PutNode(&workload.Node{Name: "n2", Addresses: addrs("192.0.2.2", "::ffff:192.0.2.3")})
		w.PutNode(&workload.Node{Name: "default/kubernetes", Addresses: addrs("192.0.2.1", "192.0.2.3", "198.51.100.9", "203.0.113.1"), APIServer: true})
		w.PutNamespace(&workload.Namespace{Name: "a", Labels: map[string]string{"team": "x"}})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "here", Node: "n1", IPs: addrs("10.0.0.1")})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "nowhere", IPs: addrs("10.0.0.2")})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "there", Node: "n2", IPs: addrs("10.0.1.1", "fd00::1"), ServiceAccount: "sa",
			Labels: map[string]string{"app": "web", "pod-template-hash": "1", "io.kubernetes.pod.namespace": "kube-system"}})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "done", Node: "n2", IPs: addrs("10.0.1.2"), Phase: "Failed"})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "hosthere", Node: "n1", HostNetwork: true, IPs: addrs("192.0.2.1")})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "hostthere", Node: "n2", HostNetwork: true, IPs: addrs("192.0.2.2")})
		w.PutPod(&workload.Pod{Namespace: "a", Name: "hostnowhere", HostNetwork: true, IPs: addrs("198.51.100.1")})
	})
	require.NoError(t, n.Start(context.Background()))
	defer n.Stop()
	there := "k8s k8s:app=web, k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=a, k8s:io.cilium.k8s.namespace.labels.team=x, k8s:io.cilium.k8s.policy.cluster=c, " +
		"k8s:io.cilium.k8s.policy.serviceaccount=sa, k8s:io.kubernetes.pod.namespace=a"
	require.Equal(t, map[string]string{
		"192.0.2.1/32 node/local":                       "local host",
		"192.0.2.3/32 api-server/default/kubernetes":    "kube-apiserver kube-apiserver",
		"198.51.100.9/32 api-server/default/kubernetes": "kube-apiserver kube-apiserver",
		"fd00:1::1/128 node/local":                      "local host",
		"203.0.113.1/32 node/n1":                        "local host",
		"192.0.2.2/32 node/n2":                          "k8s remote-node",
		"192.0.2.3/32 node/n2":                          "k8s remote-node",
		"10.0.1.1/32 pod/a/there":                       there,
		"fd00::1/128 pod/a/there":                       there,
		"192.0.2.1/32 pod/a/hosthere":                   "k8s host",
		"192.0.2.2/32 pod/a/hostthere":                  "k8s remote-node",
	}, b.m)
	require.Equal(t, addrs("192.0.2.1", "fd00:1::1"), n.Addresses())
	require.Equal(t, "n1", n.Name())
}

func TestChangesAreFollowedAndOnlyDifferencesTold(t *testing.T) {
	n, k, b, tables := setUp(t)
	heard := make(chan []netip.Addr, 8)
	n.cfg.OnAddresses = func(as []netip.Addr) { heard <- as }
	require.NoError(t, n.Start(context.Background()))
	require.Empty(t, <-heard)
	require.Empty(t, b.m)

	k.set("192.0.2.1")
	require.Equal(t, addrs("192.0.2.1"), <-heard)
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host"}), b)

	write(tables, func(w *workload.Txn) {
		w.PutPod(&workload.Pod{Namespace: "a", Name: "p", Node: "n2", IPs: addrs("10.0.1.1")})
	})
	pod := "k8s k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=a, k8s:io.cilium.k8s.policy.cluster=c, k8s:io.kubernetes.pod.namespace=a"
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host", "10.0.1.1/32 pod/a/p": pod}), b)
	write(tables, func(w *workload.Txn) {
		w.PutNamespace(&workload.Namespace{Name: "a", Labels: map[string]string{"t": "1"}})
	})
	labelled := "k8s k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=a, k8s:io.cilium.k8s.namespace.labels.t=1, k8s:io.cilium.k8s.policy.cluster=c, k8s:io.kubernetes.pod.namespace=a"
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host", "10.0.1.1/32 pod/a/p": labelled}), b)
	write(tables, func(w *workload.Txn) { w.DeletePod("a", "p") })
	write(tables, func(w *workload.Txn) { w.PutNode(&workload.Node{Name: "n2", Addresses: addrs("192.0.2.1")}) })
	k.set()
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/n2": "k8s remote-node"}), b)
	n.Stop()
	require.Equal(t, 6, b.n, "each difference once")
	require.True(t, k.closed)
}

func TestN05PodsElsewhereHaveTheNameOfTheirNamespaceAsALabel(t *testing.T) {
	n, k, b, tables := setUp(t)
	k.now = addrs("192.0.2.1")
	write(tables, func(w *workload.Txn) {
		w.PutPod(&workload.Pod{Namespace: "a", Name: "p", Node: "n2", IPs: addrs("10.0.1.1")})
		w.PutNamespace(&workload.Namespace{Name: "a", Labels: map[string]string{labels.NamespaceName: "kube-system"}})
	})
	require.NoError(t, n.Start(context.Background()))
	defer n.Stop()
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host", "10.0.1.1/32 pod/a/p": "k8s k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=a, " +
		"k8s:io.cilium.k8s.policy.cluster=c, k8s:io.kubernetes.pod.namespace=a"}), b)
}

func TestUnreadableAddressesAtTheStartAreAnError(t *testing.T) {
	n, k, _, _ := setUp(t)
	k.err = errors.New("rtnetlink is gone")
	require.ErrorIs(t, n.Start(context.Background()), k.err)
	n.Stop()
	require.True(t, k.closed)
}

func TestUnreadableAddressesLaterKeepTheLastKnown(t *testing.T) {
	n, k, b, tables := setUp(t)
	k.now = addrs("192.0.2.1")
	require.NoError(t, n.Start(context.Background()))
	k.mu.Lock()
	k.err = errors.New("interrupted dump")
	k.mu.Unlock()
	k.set()
	write(tables, func(w *workload.Txn) { w.PutNode(&workload.Node{Name: "n2", Addresses: addrs("192.0.2.2")}) })
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host", "192.0.2.2/32 node/n2": "k8s remote-node"}), b)
	close(k.moved) // the subscription broke: still alive
	write(tables, func(w *workload.Txn) { w.DeleteNode("n2") })
	eventually(t, b.is(map[string]string{"192.0.2.1/32 node/local": "local host"}), b)
	n.Stop()
}
