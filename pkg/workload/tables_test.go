package workload

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

func newTables(t *testing.T) *Tables {
	ts, err := NewTables(statedb.New())
	require.NoError(t, err)
	return ts
}

func write(ts *Tables, f func(*Txn)) {
	w := ts.Write()
	defer w.Abort()
	f(w)
	w.Commit()
}

func TestPodsAreFoundByNamespaceAndName(t *testing.T) {
	ts := newTables(t)
	write(ts, func(w *Txn) {
		w.PutPod(&Pod{Namespace: "a", Name: "x", Node: "n1", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}})
		w.PutPod(&Pod{Namespace: "a", Name: "y", Node: "n2"})
		w.PutPod(&Pod{Namespace: "ab", Name: "z", Node: "n1"})
	})
	txn := ts.DB.ReadTxn()
	p, _, ok := ts.Pod(txn, "a", "x")
	require.True(t, ok)
	require.Equal(t, "n1", p.Node)
	_, _, ok = ts.Pod(txn, "a", "z")
	require.False(t, ok)
	require.Equal(t, []string{"a", "x", "n1", "", "", "10.0.0.1,fd00::1"}, p.TableRow())
}

func TestWatchersSeeWhatIsCommittedAndNothingElse(t *testing.T) {
	ts := newTables(t)
	_, watch, ok := ts.Namespace(ts.DB.ReadTxn(), "a")
	require.False(t, ok)

	w := ts.Write()
	w.PutNamespace(&Namespace{Name: "a"})
	w.Abort()
	_, _, ok = ts.Namespace(ts.DB.ReadTxn(), "a")
	require.False(t, ok, "an aborted transaction changes nothing")
	select {
	case <-watch:
		t.Fatal("an aborted transaction wakes nobody")
	default:
	}

	write(ts, func(w *Txn) { w.PutNamespace(&Namespace{Name: "a", Labels: map[string]string{"k": "v", "a": "b"}}) })
	<-watch
	n, watch, ok := ts.Namespace(ts.DB.ReadTxn(), "a")
	require.True(t, ok)
	require.Equal(t, []string{"a", "a=b,k=v"}, n.TableRow())
	write(ts, func(w *Txn) {
		require.True(t, w.DeleteNamespace("a"))
		require.False(t, w.DeleteNamespace("a"))
	})
	<-watch
}

func TestSyncedOnlyAfterTheSourceSaysSo(t *testing.T) {
	ts := newTables(t)
	ok, done := ts.Synced(ts.DB.ReadTxn())
	require.False(t, ok)
	write(ts, func(w *Txn) { w.PutNode(&Node{Name: "n", Local: true}) })
	ok, _ = ts.Synced(ts.DB.ReadTxn())
	require.False(t, ok)
	write(ts, func(w *Txn) { w.MarkSynced() })
	<-done
	ok, _ = ts.Synced(ts.DB.ReadTxn())
	require.True(t, ok)
	for _, table := range []statedb.TableMeta{ts.Pods, ts.Namespaces, ts.Nodes} {
		init, _ := table.Initialized(ts.DB.ReadTxn())
		require.True(t, init, table.Name())
	}
	n, found := ts.LocalNode(ts.DB.ReadTxn())
	require.True(t, found)
	require.Equal(t, "n", n.Name)
	write(ts, func(w *Txn) { require.True(t, w.DeleteNode("n")) })
	_, found = ts.LocalNode(ts.DB.ReadTxn())
	require.False(t, found)
}

func TestTwoSetsOfTablesInOneDatabaseAreRefused(t *testing.T) {
	db := statedb.New()
	_, err := NewTables(db)
	require.NoError(t, err)
	_, err = NewTables(db)
	require.ErrorContains(t, err, "pods")
}
