package node

import (
	"net/netip"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/workload"
)

type tablesWatch struct{ pods, namespaces, nodes <-chan struct{} }

// The nodes, and the pods in their network.
var (
	host   = ipcache.Metadata{Identity: identity.ReservedHost}
	remote = ipcache.Metadata{Identity: identity.ReservedRemoteNode}
)

// derive says who everybody is, from one snapshot of the tables.
func (n *Node) derive(local []netip.Addr) (map[claim]said, tablesWatch) {
	out := map[claim]said{}
	put := func(a netip.Addr, resource string, src ipcache.Source, m ipcache.Metadata) {
		if a = a.Unmap().WithZone(""); a.IsValid() && !a.IsUnspecified() {
			out[claim{netip.PrefixFrom(a, a.BitLen()), resource}] = said{src, m}
		}
	}
	for _, a := range local {
		put(a, "node/local", ipcache.SourceLocal, host)
	}

	txn := n.cfg.Tables.DB.ReadTxn()
	var watch tablesWatch
	nodes, w := n.cfg.Tables.Nodes.AllWatch(txn)
	watch.nodes = w
	own := map[netip.Addr]bool{}
	for _, a := range local {
		own[a] = true
	}
	var servers []*workload.Node
	for row := range nodes {
		if row.APIServer {
			servers = append(servers, row)
			continue
		}
		for _, a := range row.Addresses {
			if row.Local || row.Name == n.cfg.Name {
				put(a, "node/"+row.Name, ipcache.SourceLocal, host)
				own[a] = true
			} else {
				put(a, "node/"+row.Name, ipcache.SourceKubernetes, remote)
			}
		}
	}
	for _, row := range servers {
		for _, a := range row.Addresses {
			if !own[a] { // a server on this node is host
				put(a, "api-server/"+row.Name, ipcache.SourceKubeAPIServer, ipcache.Metadata{Identity: identity.ReservedKubeAPIServer})
			}
		}
	}
	namespaces, w := n.cfg.Tables.Namespaces.AllWatch(txn)
	watch.namespaces = w
	nsLabels := map[string]map[string]string{}
	for row := range namespaces {
		nsLabels[row.Name] = row.Labels
	}
	pods, w := n.cfg.Tables.Pods.AllWatch(txn)
	watch.pods = w
	for row := range pods {
		if m, ok := n.podMetadata(row, nsLabels[row.Namespace]); ok {
			for _, a := range row.IPs {
				put(a, "pod/"+row.Key(), ipcache.SourceKubernetes, m)
			}
		}
	}
	return out, watch
}

// podMetadata is who has a pod's addresses; false if that is nobody, not known yet,
// or told by the pod's endpoint.
func (n *Node) podMetadata(p *workload.Pod, namespaceLabels map[string]string) (ipcache.Metadata, bool) {
	here := p.Node == n.cfg.Name
	switch {
	case p.Ended() || p.Node == "":
		return ipcache.Metadata{}, false
	case p.HostNetwork && here:
		return host, true
	case p.HostNetwork:
		return remote, true
	case here:
		return ipcache.Metadata{}, false
	}
	return n.podIdentity(p, namespaceLabels), true
}

// podIdentity is the identity of a pod on another node.
func (n *Node) podIdentity(p *workload.Pod, namespaceLabels map[string]string) ipcache.Metadata {
	ids, _ := n.cfg.Filter.Split(labels.PodLabels(labels.Pod{Namespace: p.Namespace, ServiceAccount: p.ServiceAccount,
		Cluster: n.cfg.Cluster, Labels: p.Labels, NamespaceLabels: namespaceLabels}))
	if len(ids) == 0 {
		return ipcache.Metadata{Identity: identity.ReservedUnmanaged}
	}
	return ipcache.Metadata{Labels: ids}
}
