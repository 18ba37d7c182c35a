package survey

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ipcachemap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
)

// endpointMap is lxcmap.Map.
type endpointMap interface {
	Dump() (map[netip.Addr]lxcmap.Info, error)
}

// addressMap is ipcachemap.Map.
type addressMap interface {
	Dump() (map[netip.Prefix]ipcachemap.Entry, error)
}

// words is lxcmap.Config.
type words interface {
	Audit(id uint16) (bool, error)
}

// routes is route.Table.
type routes interface{ List() ([]route.Route, error) }

// Config says what to look at. All fields are required but Owner.
type Config struct {
	Logger    *slog.Logger
	StateDir  string // of the endpoints' records
	BootID    string
	Links     func() ([]link.Host, error)
	Attached  func(ifindex int) (attach.Attached, error)
	Endpoints endpointMap
	Addresses addressMap
	Words     words
	Routes    routes
	// Owner is the attachment and the pod (namespace/name) that an address is leased
	// to, for links of builds that did not mark them. Nil: nobody knows.
	Owner func(netip.Addr) (attachment, pod string)
}

// Orphan is a link of ours of which no endpoint can be made.
type Orphan struct {
	Link   link.Host
	Number uint16 // 0: not known
	Addrs  []netip.Addr
	Reason string
}

// Survey is what Take found.
type Survey struct {
	Records []endpoint.Record // by number; also those made from the kernel
	Bad     []*endpoint.BadRecord
	Orphans []Orphan

	prefixes map[netip.Prefix]ipcachemap.Entry
}

// Take looks at records and kernel. The error says that the records could not be
// listed at all.
func Take(cfg Config) (*Survey, error) {
	s := &Survey{}
	var err error
	if s.Records, s.Bad, err = endpoint.ReadAll(cfg.StateDir, cfg.BootID); err != nil {
		return nil, err
	}
	for _, b := range s.Bad {
		cfg.Logger.Error("Endpoint record set aside", "error", b)
	}
	k := look(cfg)
	s.prefixes = k.prefixes
	numbers, links := map[uint16]bool{}, map[int]bool{}
	for _, r := range s.Records {
		numbers[r.ID], links[r.IfIndex] = true, true
	}
	for _, h := range k.links {
		if links[h.Index] {
			continue
		}
		rec, why := k.record(h)
		switch {
		case why == "" && numbers[rec.ID]:
			why = fmt.Sprintf("its number %d is that of another endpoint", rec.ID)
		case why == "":
			numbers[rec.ID] = true
			s.Records = append(s.Records, endpoint.MadeRecord(rec))
			cfg.Logger.Warn("An endpoint has no usable record and is taken over from the kernel", "endpoint", rec.ID, "interface", h.Name, "pod", rec.Pod().String())
			continue
		case !k.runs(h.Index):
			continue // of an ADD that never came to an endpoint: closed, and the next ADD or DEL removes it
		}
		cfg.Logger.Error("A link of a pod cannot be taken over; it stays as it is", "interface", h.Name, "reason", why)
		s.Orphans = append(s.Orphans, Orphan{h, rec.ID, rec.Addrs(), why})
	}
	slices.SortFunc(s.Records, func(a, b endpoint.Record) int { return int(a.ID) - int(b.ID) })
	return s, nil
}

// kernel is what was read of it.
type kernel struct {
	cfg      Config
	links    []link.Host
	entries  map[int]map[netip.Addr]lxcmap.Info // by interface
	prefixes map[netip.Prefix]ipcachemap.Entry
	routes   map[int][]netip.Addr
}

func look(cfg Config) *kernel {
	k := &kernel{cfg: cfg, entries: map[int]map[netip.Addr]lxcmap.Info{}, routes: map[int][]netip.Addr{}}
	failed := func(what string, err error) {
		if err != nil {
			cfg.Logger.Error("What the kernel knows of endpoints is not all read", "what", what, "error", err)
		}
	}
	all, err := cfg.Endpoints.Dump()
	failed("endpoint map", err)
	for a, i := range all {
		if k.entries[int(i.IfIndex)] == nil {
			k.entries[int(i.IfIndex)] = map[netip.Addr]lxcmap.Info{}
		}
		k.entries[int(i.IfIndex)][a] = i
	}
	k.prefixes, err = cfg.Addresses.Dump()
	failed("ipcache", err)
	list, err := cfg.Routes.List()
	failed("routes", err)
	for _, r := range list {
		k.routes[r.IfIndex] = append(k.routes[r.IfIndex], r.Addr)
	}
	links, err := cfg.Links()
	failed("links", err)
	for _, h := range links {
		if h.Marked || len(k.entries[h.Index]) > 0 || k.runs(h.Index) {
			k.links = append(k.links, h)
		}
	}
	return k
}

// runs reports whether programs of ours run on a link.
func (k *kernel) runs(ifindex int) bool {
	a, err := k.cfg.Attached(ifindex)
	return err != nil || a.From != 0 || a.To != 0
}

// record makes the record of a link; why says what it lacks.
func (k *kernel) record(h link.Host) (rec endpoint.Record, why string) {
	m := h.Mark
	rec = endpoint.Record{
		ID: m.Endpoint, BootID: k.cfg.BootID, ContainerID: m.Container, ContainerInterface: m.Interface, Network: m.Network,
		HostInterface: h.Name, IfIndex: h.Index, PeerIndex: h.PeerIndex, MAC: m.PodMAC, NodeMAC: h.MAC,
		PodNamespace: m.Namespace, PodName: m.Pod, PodUID: m.UID, Created: time.Now(),
	}
	addrs := map[netip.Addr]lxcmap.Info{}
	for _, a := range k.routes[h.Index] {
		addrs[a] = lxcmap.Info{}
	}
	if known := k.entries[h.Index]; len(known) > 0 {
		addrs = known
	}
	for a, i := range addrs {
		if a.Is4() {
			rec.IPv4 = a
		} else {
			rec.IPv6 = a
		}
		if i.ID != 0 {
			rec.ID, rec.Identity, rec.MAC, rec.NodeMAC = i.ID, i.Identity, i.MAC, i.NodeMAC
		} else if e, ok := k.prefixes[netip.PrefixFrom(a, a.BitLen())]; ok {
			rec.Identity = e.Identity
		}
	}
	k.askLeases(&rec)
	if rec.ContainerID == "" { // a name of its own, as no container has
		rec.ContainerID, rec.ContainerInterface = "unknown-"+h.Name, "eth0"
	}
	if rec.ID != 0 {
		rec.Audit, _ = k.cfg.Words.Audit(rec.ID) // what cannot be read does not audit
	}
	switch {
	case rec.ID < id.Min || rec.ID > id.Max:
		return rec, "its number is not known"
	case len(rec.Addrs()) == 0:
		return rec, "its addresses are not known"
	case rec.Identity == 0:
		return rec, "its identity is not known"
	case rec.MAC.IsZero():
		return rec, "the hardware address of its pod is not known"
	}
	return rec, ""
}

// askLeases fills in container and pod where the mark does not tell them.
func (k *kernel) askLeases(rec *endpoint.Record) {
	if k.cfg.Owner == nil || rec.ContainerID != "" && rec.PodName != "" {
		return
	}
	for _, a := range rec.Addrs() {
		owner, pod := k.cfg.Owner(a)
		if c, i, ok := strings.Cut(owner, ":"); ok && rec.ContainerID == "" {
			rec.ContainerID, rec.ContainerInterface = c, i
		}
		if ns, name, ok := strings.Cut(pod, "/"); ok && rec.PodName == "" {
			rec.PodNamespace, rec.PodName = ns, name
		}
	}
}

// Identities are the numbers whose labels are known from records and, of prefixes,
// from the kernel.
func (s *Survey) Identities() identity.IdentityMap {
	known := identity.IdentityMap{}
	note := func(n uint32, a labels.LabelArray) {
		if id := identity.NumericIdentity(n); n != 0 && !id.IsReserved() && known[id] == nil {
			known[id] = a
		}
	}
	for _, r := range s.Records {
		if a := r.LabelArray(); len(a) > 0 {
			note(r.Identity, a)
		}
	}
	var outside []netip.Prefix
	for p, e := range s.prefixes {
		if identity.NumericIdentity(e.Identity).IsLocal() && e.PrefixIdentity == e.Identity {
			outside = append(outside, p)
			note(e.Identity, labels.NewLabelArray(labels.CIDRLabel(p), labels.WorldLabel(p.Addr())))
		}
	}
	for p, e := range s.prefixes {
		if e.PrefixIdentity == e.Identity || !identity.NumericIdentity(e.PrefixIdentity).IsLocal() {
			continue
		}
		around := netip.Prefix{}
		for _, q := range outside {
			if q.Contains(p.Addr()) && q.Bits() <= p.Bits() && (!around.IsValid() || q.Bits() > around.Bits()) {
				around = q
			}
		}
		if around.IsValid() {
			note(e.PrefixIdentity, labels.NewLabelArray(labels.CIDRLabel(around)))
		}
	}
	return known
}

// Label gives records without labels those that byNumber or byPod know. What byPod
// knows of a pod is kept for its number by keep. A record that stays without labels
// keeps its identity, and its policy as it is in the kernel.
func (s *Survey) Label(byNumber func(identity.NumericIdentity) labels.LabelArray, byPod func(endpoint.Pod) labels.LabelArray, keep func(identity.NumericIdentity, labels.LabelArray) error) {
	for i := range s.Records {
		r := &s.Records[i]
		if len(r.LabelArray()) > 0 || r.Identity == 0 {
			continue
		}
		n := identity.NumericIdentity(r.Identity)
		a := byNumber(n)
		if len(a) == 0 {
			if a = byPod(r.Pod()); len(a) == 0 || keep(n, a) != nil {
				continue // or its labels have another number: the pod's object says so later
			}
		}
		r.SetLabels(a)
	}
}
