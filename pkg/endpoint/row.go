package endpoint

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// Pod names the Kubernetes pod behind an endpoint. All fields may be empty.
type Pod struct {
	Namespace string
	Name      string
	UID       string
}

// Known reports whether the pod has a name.
func (p Pod) Known() bool { return p.Name != "" }

// String prints namespace/name, or "" where the pod is not known.
func (p Pod) String() string {
	if !p.Known() {
		return ""
	}
	return id.PodName(p.Namespace, p.Name)
}

// Link is what the CNI plugin made for the endpoint. It does not change during
// the endpoint's life.
type Link struct {
	ContainerID        string
	ContainerInterface string // name inside the pod
	Network            string // name of the CNI network; empty: not known, as in records of former builds
	NetNS              string // path of the pod's network namespace as the runtime gave it
	HostInterface      string // name of the host side of the pair
	IfIndex            int    // of the host side
	PeerIndex          int    // of the other end, in the pod's namespace; 0: not known, as in records of former builds
	MAC                types.MAC
	NodeMAC            types.MAC // of the host side
	IPv4               netip.Addr
	IPv6               netip.Addr
	// Pool is the IPAM pool of the addresses.
	Pool string
}

// Attachment is the key of the link: container id and interface name.
func (l Link) Attachment() string { return id.Attachment(l.ContainerID, l.ContainerInterface) }

// Addrs lists the addresses that are set, IPv4 first.
func (l Link) Addrs() []netip.Addr { return plan.Layout{IPv4: l.IPv4, IPv6: l.IPv6}.Addrs() }

// Row is an immutable snapshot of an endpoint. Slices and maps in it are never
// written to after publication; a change replaces them.
type Row struct {
	ID       uint16
	Seq      uint64 // grows with every published change
	State    regeneration.State
	Reason   string // why the endpoint is not ready, or what went wrong last; empty when all is well
	Degraded string // why the endpoint denies more than its policy although it is ready; empty otherwise
	Restored bool   // came from a record of an earlier agent and has not been built since
	Created  time.Time
	BootID   string // of the kernel that has the link; empty in records of former builds

	Link
	Pod Pod
	// RequestLabels are those that the runtime gave with the request, for pods
	// without a Pod object.
	RequestLabels map[string]string
	// Standalone: the runtime has no Pod objects. One of the pod's name counts if it
	// is there, but is not waited for.
	Standalone bool
	// PodSeen: the labels are, or were, of a Pod object.
	PodSeen bool

	Settings

	Labels        labels.LabelArray // identity-relevant; nil: not known yet
	InfoLabels    labels.LabelArray // the others
	NamedPorts    policytypes.NamedPorts
	LabelRevision uint64                   // grows with every change of Labels or NamedPorts
	LabelsInForce uint64                   // LabelRevision of what the last build put into force
	Identity      identity.NumericIdentity // of Labels; 0: not allocated yet

	Realized *plan.Layout // what the kernel has; nil: nothing, or not known after a restart
	// PrefixIdentities are those written to the endpoint map, IPv4 and IPv6.
	PrefixIdentities [2]identity.NumericIdentity
	Slot             uint32    // policy slot in force; 0: deny everything
	SlotGroup        string    // under which the slot is held
	KernelRevision   uint32    // beside the slot, as the last build wrote it; ipcache changes move it on
	KernelSettings   Settings  // Settings, as the last build put them into force
	building         *Settings // of the build that runs; nil: none does
	PolicyEntries    int       // in force
	RealizedPolicy   map[policytypes.Key]policytypes.Entry

	PolicyRevision     uint64 // of the repository: the policy in force answers for it
	NextPolicyRevision uint64 // the newest one that the endpoint was told of
	// AffectedRevision is the newest one that changes this endpoint's policy.
	AffectedRevision  uint64
	AttemptedRevision uint64 // of the last build, also of one that failed
}

// Built reports whether a build of this agent has put the endpoint into the kernel.
func (r *Row) Built() bool { return r.Realized != nil }

// Audits reports whether what a rule denies may pass: that is asked for, or the
// kernel has it still.
func (r *Row) Audits() bool { return r.Audit || r.KernelSettings.Audit }

// EnforcementInForce is the mode that the kernel has, or, where that is not
// known, the one that is asked for.
func (r *Row) EnforcementInForce() policytypes.Enforcement {
	if r.Built() {
		return r.KernelSettings.Enforcement
	}
	return r.Enforcement
}

// InSync reports whether the policy in force is the one that was last asked for.
func (r *Row) InSync() bool { return r.Built() && r.PolicyRevision >= r.AffectedRevision }

// readyFor reports whether the endpoint has been ready since it was asked: it was
// built with the labels and the policy that it had then, or newer ones. What
// makes it build again meanwhile does not matter.
func (r *Row) readyFor(asked *Row) bool {
	return r.State == regeneration.StateReady ||
		r.State.Alive() && r.Built() && r.LabelsInForce >= asked.LabelRevision && r.PolicyRevision >= asked.AffectedRevision
}

// Desired is the layout that the row asks for.
func (r *Row) Desired() plan.Layout {
	return plan.Layout{
		ID: r.ID, Identity: r.Identity, IfIndex: r.IfIndex,
		MAC: r.MAC, NodeMAC: r.NodeMAC, IPv4: r.IPv4, IPv6: r.IPv6,
	}
}

// PolicyGroup names the endpoints that always have the same policy map: those
// of one identity, the same named ports and the same mode.
func (r *Row) PolicyGroup() string {
	ports := make([]string, 0, len(r.NamedPorts))
	for name, number := range r.NamedPorts {
		ports = append(ports, fmt.Sprintf(" %s=%d", name, number))
	}
	slices.Sort(ports)
	mode := ""
	if _, own := r.Enforcement.Own(); own {
		mode = " enforcement " + r.Enforcement.String()
	}
	return fmt.Sprint(uint32(r.Identity)) + mode + strings.Join(ports, "")
}

// same reports whether nothing worth publishing differs. Seq is ignored.
func (r *Row) same(o *Row) bool {
	return r.State == o.State && r.Reason == o.Reason && r.Degraded == o.Degraded && r.Restored == o.Restored && r.Settings == o.Settings &&
		r.Link == o.Link && r.Pod == o.Pod && r.PodSeen == o.PodSeen && r.Labels.Equal(o.Labels) && r.InfoLabels.Equal(o.InfoLabels) &&
		maps.Equal(r.NamedPorts, o.NamedPorts) && r.LabelRevision == o.LabelRevision && r.LabelsInForce == o.LabelsInForce && r.Identity == o.Identity &&
		r.Realized == o.Realized && r.PrefixIdentities == o.PrefixIdentities && r.Slot == o.Slot && r.SlotGroup == o.SlotGroup &&
		r.KernelRevision == o.KernelRevision && r.KernelSettings == o.KernelSettings && r.building == o.building && r.PolicyEntries == o.PolicyEntries &&
		r.PolicyRevision == o.PolicyRevision && r.NextPolicyRevision == o.NextPolicyRevision &&
		r.AffectedRevision == o.AffectedRevision && r.AttemptedRevision == o.AttemptedRevision
}
