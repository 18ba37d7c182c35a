package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Primary keys of the tables.
var (
	PodByKey = statedb.Index[*Pod, string]{
		Name:       "key",
		FromObject: func(p *Pod) index.KeySet { return index.NewKeySet(index.String(p.Key())) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
	NamespaceByName = statedb.Index[*Namespace, string]{
		Name:       "name",
		FromObject: func(n *Namespace) index.KeySet { return index.NewKeySet(index.String(n.Name)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
	NodeByName = statedb.Index[*Node, string]{
		Name:       "name",
		FromObject: func(n *Node) index.KeySet { return index.NewKeySet(index.String(n.Name)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
)

// Tables are the three tables of one database. Readers use the tables, the writer
// uses Write.
type Tables struct {
	DB         *statedb.DB
	Pods       statedb.Table[*Pod]
	Namespaces statedb.Table[*Namespace]
	Nodes      statedb.Table[*Node]

	pods       statedb.RWTable[*Pod]
	namespaces statedb.RWTable[*Namespace]
	nodes      statedb.RWTable[*Node]
	synced     []func(statedb.WriteTxn)
}

// NewTables registers the tables "pods", "namespaces" and "nodes" in db. It
// fails if the database has tables of these names.
func NewTables(db *statedb.DB) (*Tables, error) {
	pods, err := statedb.NewTable(db, "pods", PodByKey)
	if err != nil {
		return nil, fmt.Errorf("register the table pods: %w", err)
	}
	namespaces, err := statedb.NewTable(db, "namespaces", NamespaceByName)
	if err != nil {
		return nil, fmt.Errorf("register the table namespaces: %w", err)
	}
	nodes, err := statedb.NewTable(db, "nodes", NodeByName)
	if err != nil {
		return nil, fmt.Errorf("register the table nodes: %w", err)
	}
	t := &Tables{DB: db, Pods: pods, Namespaces: namespaces, Nodes: nodes, pods: pods, namespaces: namespaces, nodes: nodes}
	txn := db.WriteTxn(pods, namespaces, nodes)
	defer txn.Commit()
	t.synced = []func(statedb.WriteTxn){
		pods.RegisterInitializer(txn, "source"), namespaces.RegisterInitializer(txn, "source"), nodes.RegisterInitializer(txn, "source"),
	}
	return t, nil
}

// Pod returns the row of a pod, and a channel that closes when it changes,
// appears or goes.
func (t *Tables) Pod(txn statedb.ReadTxn, namespace, name string) (*Pod, <-chan struct{}, bool) {
	p, _, watch, ok := t.Pods.GetWatch(txn, PodByKey.Query(PodKey(namespace, name)))
	return p, watch, ok
}

// Namespace returns the row of a namespace, and a channel that closes when it
// changes, appears or goes.
func (t *Tables) Namespace(txn statedb.ReadTxn, name string) (*Namespace, <-chan struct{}, bool) {
	n, _, watch, ok := t.Namespaces.GetWatch(txn, NamespaceByName.Query(name))
	return n, watch, ok
}

// LocalNode returns the row of the node that this agent runs on.
func (t *Tables) LocalNode(txn statedb.ReadTxn) (*Node, bool) {
	for n := range t.Nodes.All(txn) {
		if n.Local {
			return n, true
		}
	}
	return nil, false
}

// Synced reports whether the source has told everything it had once. The channel
// closes when it has.
func (t *Tables) Synced(txn statedb.ReadTxn) (bool, <-chan struct{}) {
	// MarkSynced initialises all three tables in one transaction.
	return t.Nodes.Initialized(txn)
}

// Write opens a transaction over the three tables. It holds the writers' lock
// until Commit or Abort.
func (t *Tables) Write() *Txn {
	return &Txn{t: t, txn: t.DB.WriteTxn(t.pods, t.namespaces, t.nodes)}
}

// Txn is a set of changes that readers see all at once.
type Txn struct {
	t   *Tables
	txn statedb.WriteTxn
}

// PutPod inserts or replaces a pod. The row must not be changed afterwards.
func (w *Txn) PutPod(p *Pod) { must(w.t.pods.Insert(w.txn, p)) }

// DeletePod removes a pod; false if there was none.
func (w *Txn) DeletePod(namespace, name string) bool {
	return must(w.t.pods.Delete(w.txn, &Pod{Namespace: namespace, Name: name}))
}

// PutNamespace inserts or replaces a namespace.
func (w *Txn) PutNamespace(n *Namespace) { must(w.t.namespaces.Insert(w.txn, n)) }

// DeleteNamespace removes a namespace; false if there was none.
func (w *Txn) DeleteNamespace(name string) bool {
	return must(w.t.namespaces.Delete(w.txn, &Namespace{Name: name}))
}

// PutNode inserts or replaces a node.
func (w *Txn) PutNode(n *Node) { must(w.t.nodes.Insert(w.txn, n)) }

// DeleteNode removes a node; false if there was none.
func (w *Txn) DeleteNode(name string) bool {
	return must(w.t.nodes.Delete(w.txn, &Node{Name: name}))
}

// MarkSynced says that the source has told everything it had.
func (w *Txn) MarkSynced() {
	for _, done := range w.t.synced {
		done(w.txn)
	}
}

// Commit makes the changes visible.
func (w *Txn) Commit() { w.txn.Commit() }

// Abort drops the changes. After Commit it does nothing, so it can be deferred.
func (w *Txn) Abort() { w.txn.Abort() }

// must drops the error of a table write. Its only causes are a table that the
// transaction did not lock, which Write rules out, and a transaction used after
// Commit or Abort, which changes nothing.
func must[T any](_ T, existed bool, _ error) bool { return existed }

func joinLabels(m map[string]string) string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, ",")
}
