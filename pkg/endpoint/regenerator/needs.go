package regenerator

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/plan"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// Resolved is the policy of one endpoint and the revision that it answers for.
type Resolved struct {
	Entries  map[policytypes.Key]policytypes.Entry // not written to by anybody
	Revision uint64                                // of the repository
	// Version grows with everything that the entries were computed from: the
	// policies and the set of identities.
	Version uint64
	// Keep says why the policy is not known, so that what the kernel has stays: slot,
	// revision and identity. An endpoint that is not in the kernel stays out of it.
	Keep string
}

// policyResolver is policy/repository.
type policyResolver interface {
	Resolve(ctx context.Context, row *endpoint.Row) (Resolved, error)
}

// policySlots is policymap.Slots. version is Resolved.Version.
type policySlots interface {
	Acquire(group string, version uint64, want []policymap.Line) (slot uint32, err error)
	Update(slot uint32, group string, version uint64, want []policymap.Line) (newSlot uint32, err error)
	Release(slot uint32, group string) error
	Adopt(slot uint32, group string) error
}

// policyWords is lxcmap.Config.
type policyWords interface {
	NextRevision() uint32
	SetPolicy(id uint16, slot, revision uint32) error
	SetAudit(id uint16, on bool) error
	Audit(id uint16) (bool, error)
	Policy(id uint16) (slot, revision uint32, err error)
	Clear(id uint16) error
}

// endpointMap is lxcmap.Map. Delete of a missing address is no error.
type endpointMap interface {
	Put(addr netip.Addr, info lxcmap.Info) error
	Delete(addr netip.Addr) error
}

// Programs are loaded and not attached yet.
type Programs interface {
	// Attach puts the programs into force in one atomic replacement each.
	Attach(ctx context.Context) error
	// Close gives up programs that were not attached. After Attach it does nothing.
	Close() error
}

// datapath is datapath/orchestrator. Load waits for the base initialisation
// before it takes the compilation lock. Unload of what is not there is no error.
type datapath interface {
	Load(ctx context.Context, l plan.Layout) (Programs, error)
	Unload(ctx context.Context, l plan.Layout) error
}

// addressBook is ipcache. Entries belong to owner; removing what is not there
// is no error.
type addressBook interface {
	Publish(addr netip.Addr, owner string, id identity.NumericIdentity)
	Withdraw(addr netip.Addr, owner string)
	PrefixIdentity(addr netip.Addr) identity.NumericIdentity
}

// connector opens and closes the way between the node and the pod: the host
// side of the link and the routes. Both may be repeated; Disconnect tolerates a
// link that is gone.
type connector interface {
	Connect(ctx context.Context, l plan.Layout) error
	Disconnect(ctx context.Context, l plan.Layout) error
}

// conntrack forgets the flows of an address.
type conntrack interface {
	Purge(addr netip.Addr) error
}

// Config is what a Regenerator needs. All fields are required but Redirects
// and the retry waits.
type Config struct {
	Logger    *slog.Logger
	Queue     *endpoint.BuildQueue
	Policy    policyResolver
	Slots     policySlots
	Words     policyWords
	Endpoints endpointMap
	Datapath  datapath
	Addresses addressBook
	Connector connector
	Conntrack conntrack
	Redirects endpoint.Redirector // nil: no proxy

	RetryMin time.Duration // before the first retry of a failed build; default 1 s
	RetryMax time.Duration // the most; default 60 s
}
