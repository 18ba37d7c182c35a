package node

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/workload"
)

// resync is how often everything is read again without a reason, and how soon a
// broken subscription is renewed.
const resync = 30 * time.Second

// addressBook is ipcache.
type addressBook interface {
	UpsertMetadata(prefix netip.Prefix, src ipcache.Source, resource string, m ipcache.Metadata)
	RemoveMetadata(prefix netip.Prefix, resource string)
}

// addresses is the kernel.
type addresses interface {
	list() ([]netip.Addr, error)
	changes(ctx context.Context) (<-chan struct{}, error)
	close()
}

// Config of a Node. All fields but Cluster, Filter and OnAddresses are required.
type Config struct {
	Logger  *slog.Logger
	Name    string // of the local node, as in the Node and Pod objects
	Cluster string // label of every pod
	Filter  *labels.Filter
	Tables  *workload.Tables
	Book    addressBook
	// OnAddresses hears the node's own addresses, sorted, once in Start and after
	// every change.
	OnAddresses func([]netip.Addr)
}

// Node follows the local node and its surroundings.
type Node struct {
	cfg    Config
	kernel addresses
	stop   context.CancelFunc
	worker sync.WaitGroup

	mu    sync.Mutex
	local []netip.Addr // sorted

	told map[claim]said // only the worker, after Start
}

// claim is an entry of the address book by which it is taken back.
type claim struct {
	prefix   netip.Prefix
	resource string
}

type said struct {
	source   ipcache.Source
	metadata ipcache.Metadata
}

// New opens the network namespace of the calling thread, which must be the
// node's. Stop closes it.
func New(cfg Config) (*Node, error) {
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	return newNode(cfg, k), nil
}

func newNode(cfg Config, k addresses) *Node {
	if cfg.OnAddresses == nil {
		cfg.OnAddresses = func([]netip.Addr) {}
	}
	return &Node{cfg: cfg, kernel: k, told: map[claim]said{}}
}

// Name returns the local node's name.
func (n *Node) Name() string { return n.cfg.Name }

// Addresses returns the addresses of the node's own namespace, sorted, without
// loopback.
func (n *Node) Addresses() []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.local)
}

// Start reads and tells everything once, then follows changes until Stop.
func (n *Node) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	moved, err := n.kernel.changes(ctx) // before the first read, so that nothing falls between
	if err == nil {
		err = n.readAddresses()
	}
	if err != nil {
		cancel()
		return err
	}
	n.cfg.OnAddresses(n.Addresses())
	watch := n.tell()
	n.stop = cancel
	n.worker.Add(1)
	go func() {
		defer n.worker.Done()
		n.run(ctx, moved, watch)
	}()
	return nil
}

// Stop ends the following and closes the namespace. What was told stays.
func (n *Node) Stop() {
	if n.stop != nil {
		n.stop()
		n.worker.Wait()
	}
	n.kernel.close()
}

func (n *Node) run(ctx context.Context, moved <-chan struct{}, watch tablesWatch) {
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		read := false
		select {
		case <-ctx.Done():
			return
		case _, ok := <-moved:
			if read = true; !ok {
				moved = nil
			}
		case <-tick.C:
			if read = true; moved == nil {
				moved = n.follow(ctx)
			}
		case <-watch.pods:
		case <-watch.namespaces:
		case <-watch.nodes:
		}
		if ctx.Err() != nil {
			return
		}
		if read {
			before := n.Addresses()
			if err := n.readAddresses(); err != nil {
				n.cfg.Logger.Warn("Addresses of the node are not up to date; reading them again soon", "error", err)
			} else if now := n.Addresses(); !slices.Equal(before, now) {
				n.cfg.Logger.Info("Addresses of the node changed", "addresses", now)
				n.cfg.OnAddresses(now)
			}
		}
		watch = n.tell()
	}
}

func (n *Node) follow(ctx context.Context) <-chan struct{} {
	moved, err := n.kernel.changes(ctx)
	if err != nil {
		n.cfg.Logger.Warn("Changes of the node's addresses are seen late", "error", err, "every", resync)
		return nil
	}
	return moved
}

func (n *Node) readAddresses() error {
	found, err := n.kernel.list()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.local = found
	return nil
}

// tell brings the address book up to date. The channels close when the tables
// have moved on.
func (n *Node) tell() tablesWatch {
	want, watch := n.derive(n.Addresses())
	for c, s := range want {
		if old, ok := n.told[c]; !ok || old.source != s.source || old.metadata.Identity != s.metadata.Identity || !old.metadata.Labels.Equal(s.metadata.Labels) {
			n.cfg.Book.UpsertMetadata(c.prefix, s.source, c.resource, s.metadata)
		}
	}
	for c := range n.told {
		if _, ok := want[c]; !ok {
			n.cfg.Book.RemoveMetadata(c.prefix, c.resource)
		}
	}
	n.told = want
	return watch
}
