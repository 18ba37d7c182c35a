package api

import (
	"context"
	"net/netip"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/policy/explain"
	"github.com/weirnet/weir/pkg/policy/types"
)

// Sources are the parts of the agent that the handlers ask. A nil source makes
// its operations answer "not-ready".
type Sources struct {
	Status     statusSource
	Identities identitySource
	Policies   policySource
	Editor     policyEditor
	Keeper     sourceKeeper
	IPs        ipSource
	IPAM       leaseKeeper
	Explainer  explainer
	Events     eventSource
}

// statusSource knows how the agent is and how it was configured. The handlers
// fill in both versions.
type statusSource interface {
	Status(ctx context.Context) gen.Status
	Config(ctx context.Context) gen.Config
	Maps(ctx context.Context) ([]gen.MapInfo, error)
}

// identitySource knows the identities in use, reserved ones included.
type identitySource interface {
	Identities() []*identity.Identity
	Identity(id identity.NumericIdentity) (*identity.Identity, bool)
}

// policySource knows the policies in force and the rule numbers.
type policySource interface {
	// Policies returns the repository's revision and its policies.
	Policies() (revision uint64, policies []*types.Policy)
	// Realized is the lowest revision that an endpoint's policy map holds; the
	// repository's own without endpoints.
	Realized() uint64
	Rule(id types.RuleID) (types.RuleRef, bool)
}

// policyEditor reads documents and changes the repository: all of a document
// or nothing. Failures that the caller can mend are *v1.Error.
type policyEditor interface {
	Apply(ctx context.Context, file string, document []byte) (PolicyChange, error)
	Delete(ctx context.Context, kind, namespace, name string) (PolicyChange, error)
	Validate(ctx context.Context, file string, document []byte) Validation
}

// sourceKeeper knows the folders that objects are read from. A folder that is none
// is an *v1.Error.
type sourceKeeper interface {
	Sources(ctx context.Context) []gen.Source
	Accept(ctx context.Context, folder string) (gen.Source, error)
}

// PolicyChange says which objects changed and the revision that holds the change.
type PolicyChange struct {
	Revision  uint64
	Resources []types.Resource
}

// Validation is what a check found. It is valid without a Problem that is not
// a warning.
type Validation struct {
	Resources []types.Resource
	Problems  []Problem
}

// Problem is a finding of a check.
type Problem struct {
	File    string
	Line    int    // from 1; 0 unknown
	Field   string // path such as spec.egress[0].toFQDNs; empty for the whole object
	Text    string
	Warning bool // the object is valid all the same
}

// ipSource knows which identity a prefix or address has.
type ipSource interface {
	IPs() []IPEntry
	LookupIP(addr netip.Addr) (IPEntry, bool)
}

// IPEntry is one line of the ipcache.
type IPEntry struct {
	Prefix         netip.Prefix
	Identity       identity.NumericIdentity
	PrefixIdentity identity.NumericIdentity // 0: no prefix of a policy covers it
	Labels         labels.LabelArray        // of Identity; nil unknown
	Source         string
}

// leaseKeeper hands out pod addresses. An exhausted pool is an *v1.Error with
// CodeExhausted, an address in use one with CodeConflict.
type leaseKeeper interface {
	Allocate(ctx context.Context, r LeaseRequest) (gen.Lease, error)
	// Release frees both families of the lease that holds addr; nothing held is
	// no error. With a lease id it is kept when addr belongs to another lease.
	Release(ctx context.Context, addr netip.Addr, lease string) error
	Leases(ctx context.Context) gen.IPAMStatus
}

// LeaseRequest asks for addresses, all or none.
type LeaseRequest struct {
	Owner     string     // the CNI plugin gives container:interface
	Pod       gen.PodRef // zero for a runtime without pods; its annotations may ask for addresses
	Pool      string     // empty: the default pool
	IPv4      *bool      // nil: as the pool offers
	IPv6      *bool
	Requested []netip.Addr // at most one a family
	Expires   bool
}

// explainer judges a connection without sending anything.
type explainer interface {
	Explain(ctx context.Context, q Question) (Explanation, error)
}

// Question is a connection to judge.
type Question struct {
	From, To Side
	Port     uint16 // destination port, host order; 0 where PortName is set or the protocol has none
	PortName string // name of a port of the destination pod; of ICMP a type's number or name, empty: the echo request
	Proto    string // TCP, UDP, SCTP, ICMP, ICMPv6
}

// Side is one end as the caller named it; one of pod, endpoint and address is set.
type Side struct {
	Namespace, Name string
	Endpoint        uint16
	Addr            netip.Addr
}

// Explanation is the answer to a Question.
type Explanation struct {
	explain.Explanation
	From, To gen.Peer
}

// eventSource gives out the data plane's events.
type eventSource interface {
	// Follow calls subscribed once no later event can be missed, then emit for
	// every event until ctx ends or one of the two fails, and returns that error.
	// It must not block the readers of other callers; what this caller misses
	// becomes an event of type lost.
	Follow(ctx context.Context, subscribed func() error, emit func(gen.Event) error) error
	// HasEndpoint reports whether an endpoint of this node answers to a reference.
	HasEndpoint(ref id.Ref) bool
}
