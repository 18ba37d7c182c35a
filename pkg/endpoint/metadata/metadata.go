package metadata

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/workload"
)

// Patience is how long a new endpoint waits for its pod to appear in the tables.
const Patience = 2 * time.Second

// Resolver reads the labels of pods. It has no state of its own.
type Resolver struct {
	log     *slog.Logger
	tables  *workload.Tables
	filter  *labels.Filter
	cluster string
	space   string                                      // namespace of pods whose runtime names none
	admit   func(endpoint.Pod, labels.LabelArray) error // nil: every pod
}

// New returns a Resolver. cluster is the name of the cluster, which becomes a
// label of every pod; filter splits labels into identity and information.
func New(log *slog.Logger, tables *workload.Tables, filter *labels.Filter, cluster string) *Resolver {
	return &Resolver{log: log, tables: tables, filter: filter, cluster: cluster}
}

// InNamespace sets the namespace of pods whose runtime names none.
func (r *Resolver) InNamespace(namespace string) *Resolver {
	r.space = namespace
	return r
}

// PodNamespace is the namespace that the runtime names, or else the one among its
// labels, or else the configured one: every pod has one.
func (r *Resolver) PodNamespace(given string, request map[string]string) string {
	return cmp.Or(given, request[labels.KeyPodNamespace], r.space)
}

// Admit sets who is asked before a new endpoint gets its labels: an error refuses the
// endpoint. Call it before the first Attach.
func (r *Resolver) Admit(f func(endpoint.Pod, labels.LabelArray) error) *Resolver {
	r.admit = f
	return r
}

// source says where labels were found.
type source uint8

const (
	sourceNone    source = iota // nothing is known of the pod
	sourceRequest               // the runtime gave labels and there is no Pod object
	sourcePod
)

// found is what the tables say of an endpoint's pod at one moment.
type found struct {
	source        source
	ids, infos    labels.LabelArray
	ports         policytypes.NamedPorts
	podChanged    <-chan struct{} // nil: the endpoint has no pod name
	nsChanged     <-chan struct{}
	otherUID      string // of a pod of the same name that is not the endpoint's
	podHasEnded   bool
	synced        bool            // the tables hold all that there is
	syncChanged   <-chan struct{} // nil: they do
	namespaceSeen bool
}

// look reads pod and namespace from one snapshot of the tables.
func (r *Resolver) look(row *endpoint.Row) found {
	var f found
	txn := r.tables.DB.ReadTxn()
	if f.synced, f.syncChanged = r.tables.Synced(txn); f.synced {
		f.syncChanged = nil
	}
	pod := labels.Pod{Namespace: row.Pod.Namespace, Cluster: r.cluster}
	if row.Pod.Known() {
		p, changed, ok := r.tables.Pod(txn, row.Pod.Namespace, row.Pod.Name)
		f.podChanged = changed
		switch {
		case !ok:
		case row.Pod.UID != "" && p.UID != "" && p.UID != row.Pod.UID:
			f.otherUID = p.UID
		case p.Ended():
			f.podHasEnded = true
		default:
			f.source = sourcePod
			pod.Labels, pod.ServiceAccount = p.Labels, p.ServiceAccount
			f.ports = namedPorts(p.NamedPorts)
		}
	}
	if f.source == sourceNone && (row.RequestLabels != nil || row.Standalone) {
		f.source, pod.Labels = sourceRequest, row.RequestLabels
	}
	if row.Pod.Namespace != "" {
		ns, changed, ok := r.tables.Namespace(txn, row.Pod.Namespace)
		f.nsChanged = changed
		if ok {
			pod.NamespaceLabels, f.namespaceSeen = ns.Labels, true
		}
	}
	if f.source != sourceNone {
		f.ids, f.infos = r.filter.Split(labels.PodLabels(pod))
	}
	if f.source != sourceNone && len(f.ids) == 0 {
		f.ids = initLabels() // the filter left nothing to tell the pod by
	}
	return f
}

func namedPorts(ps []workload.NamedPort) policytypes.NamedPorts {
	if len(ps) == 0 {
		return nil
	}
	m := make(policytypes.NamedPorts, len(ps))
	for _, p := range ps {
		m[policytypes.NamedPort{Name: p.Name, Proto: p.Proto}] = p.Port
	}
	return m
}

func initLabels() labels.LabelArray { return labels.NewLabelArray(labels.Reserved(labels.NameInit)) }

// Attach gives a new endpoint its labels and follows its pod in the background
// until the endpoint goes away. It waits up to Patience for the pod; after that
// the endpoint continues as reserved:init and gets its labels when the pod
// appears. The error is the context's, or says that the endpoint is going away.
func (r *Resolver) Attach(ctx context.Context, e *endpoint.Endpoint) error {
	leave := e.Enter(regeneration.StationMetadata, "")
	f, err := r.await(ctx, e)
	if err == nil {
		ids, infos := f.ids, f.infos
		if f.source == sourceNone {
			ids = initLabels()
			r.explain(e, f)
		}
		if r.admit != nil && !e.Row().Restored {
			err = r.admit(e.Row().Pod, ids)
		}
		if err == nil {
			err = set(e, found{source: f.source, ids: ids, infos: infos, ports: f.ports})
		}
	}
	leave(err)
	if err != nil {
		return err
	}
	go r.follow(e, f)
	return nil
}

// Labels are those that a pod's object gives it now; nil: none is known.
func (r *Resolver) Labels(p endpoint.Pod) labels.LabelArray {
	f := r.look(&endpoint.Row{Pod: p})
	if f.source != sourcePod {
		return nil
	}
	return f.ids
}

// Resume follows the pod of a restored endpoint in the background. The labels of
// the record stay until built is closed and the pod is seen, as does an identity
// whose labels are not known; an endpoint whose record has neither gets
// reserved:init after Patience.
func (r *Resolver) Resume(e *endpoint.Endpoint, built <-chan struct{}) {
	go func() {
		if e.Row().Pod.Namespace == "" { // in records of former versions
			_ = e.Update(func(t *endpoint.Turn) { t.Row.Pod.Namespace = r.PodNamespace("", t.Row.RequestLabels) })
		}
		row := e.Row()
		if len(row.Labels) == 0 && row.Identity == 0 {
			_ = r.Attach(e.Alive(), e) // it fails only when the endpoint goes away
			return
		}
		select {
		case <-built:
		case <-e.Alive().Done():
			return
		}
		named := labels.WithNamespaceName(row.Labels) // not in the records of former versions
		if r.filter.Relevant(labels.Label{Source: labels.SourceK8s, Key: labels.KeyNamespaceName}) &&
			!named.Equal(row.Labels) && !r.improves(r.look(row), row) {
			if e.SetLabels(named, row.InfoLabels, row.NamedPorts) != nil {
				return
			}
		}
		r.follow(e, found{})
	}()
}

// await looks until something is known of the pod or the patience is over.
func (r *Resolver) await(ctx context.Context, e *endpoint.Endpoint) (found, error) {
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	for {
		f := r.look(e.Row())
		if f.source != sourceNone || f.podChanged == nil {
			return f, nil
		}
		select {
		case <-f.podChanged:
		case <-limit.C:
			return f, nil
		case <-e.Alive().Done():
			return f, &endpoint.NotAliveError{ID: e.ID, State: e.Row().State}
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
}

// explain says in log and status why an endpoint continues as init.
func (r *Resolver) explain(e *endpoint.Endpoint, f found) {
	msg := "pod not in cache after " + Patience.String() + "; continuing as init"
	switch {
	case f.podChanged == nil:
		msg = "the request names no pod and no labels; continuing as init"
	case f.otherUID != "":
		msg = "the pod in cache has the UID " + f.otherUID + " and not the one of the request after " + Patience.String() + "; continuing as init"
	case f.podHasEnded:
		msg = "the pod in cache has ended; continuing as init"
	}
	e.Note(endpoint.TopicOther, endpoint.SeverityWarning, "%s", msg)
	e.Logger(regeneration.StationMetadata).Warn("Pod metadata is missing", "why", msg)
}

// follow sets the labels again after every change of pod or namespace. It ends
// with the endpoint.
func (r *Resolver) follow(e *endpoint.Endpoint, last found) {
	for {
		if last.podChanged != nil || last.nsChanged != nil {
			select {
			case <-last.podChanged:
			case <-last.nsChanged:
			case <-last.syncChanged:
			case <-e.Alive().Done():
				return
			}
		}
		f := r.look(e.Row())
		if f.podChanged == nil && f.nsChanged == nil {
			return // nothing that could change
		}
		if r.improves(f, e.Row()) {
			if set(e, f) != nil {
				return
			}
		}
		last = f
	}
}

// set gives the endpoint the labels, and notes that they are of a Pod object.
func set(e *endpoint.Endpoint, f found) error {
	if f.source == sourcePod && !e.Row().PodSeen {
		if err := e.Update(func(t *endpoint.Turn) { t.Row.PodSeen = true }); err != nil {
			return err
		}
	}
	return e.SetLabels(f.ids, f.infos, f.ports)
}

// improves reports whether what was found should replace the labels in force. A
// pod that went away or ended changes nothing. The labels of a request do not
// replace those that a pod had, and those of a record stay until the namespace
// is known, or known to have no object.
func (r *Resolver) improves(f found, row *endpoint.Row) bool {
	known := f.synced || f.namespaceSeen || !row.Restored
	switch f.source {
	case sourcePod:
		return known
	case sourceRequest:
		return known && !f.podHasEnded && f.otherUID == "" && !row.PodSeen
	}
	return false
}
