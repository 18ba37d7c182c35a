package cmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/api"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
	"github.com/weirnet/weir/pkg/ipam"
	"github.com/weirnet/weir/pkg/workload"
)

// addressAnnotation of a Pod asks for addresses: one or two, separated by commas.
const addressAnnotation = "weir.dev/ips"

// leases hands out pod addresses (pkg/api leaseKeeper).
type leases struct {
	*ipam.IPAM
	tables  *workload.Tables
	user    func(netip.Addr) uint16 // number of the endpoint that has an address; 0: none. Set before the API is served
	own     func() []netip.Addr     // addresses of this node. Set before the API is served
	routers atomic.Pointer[[]netip.Addr]
}

// Allocate leases addresses; those that the pod's annotation asks for, unless
// the request names some itself.
func (l *leases) Allocate(ctx context.Context, r api.LeaseRequest) (gen.Lease, error) {
	req := ipam.Request{Owner: r.Owner, Pool: r.Pool, Requested: r.Requested, Expiration: r.Expires}
	if r.Pod.Name != "" {
		req.Pod = workload.PodKey(r.Pod.Namespace, r.Pod.Name)
		if len(req.Requested) == 0 {
			var err error
			if req.Requested, err = l.annotated(r.Pod); err != nil {
				return gen.Lease{}, err
			}
		}
	}
	if r.IPv4 != nil {
		req.IPv4 = *r.IPv4
	}
	if r.IPv6 != nil {
		req.IPv6 = *r.IPv6
	}
	lease, err := l.IPAM.Allocate(ctx, req)
	if err != nil {
		return gen.Lease{}, leaseError(err)
	}
	return leaseModel(lease), nil
}

// annotated returns the addresses that a pod's annotation asks for.
func (l *leases) annotated(p gen.PodRef) ([]netip.Addr, error) {
	pod, _, ok := l.tables.Pod(l.tables.DB.ReadTxn(), p.Namespace, p.Name)
	if !ok || pod.Annotations[addressAnnotation] == "" {
		return nil, nil
	}
	var out []netip.Addr
	for _, text := range strings.Split(pod.Annotations[addressAnnotation], ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, v1.Errorf(v1.CodeInvalid, "correct the annotation", "annotation %s of pod %s: %q is not an IP address", addressAnnotation, pod.Key(), text)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

func leaseError(err error) error {
	switch {
	case errors.Is(err, ipam.ErrExhausted):
		return v1.NewError(v1.CodeExhausted, err, "delete pods, or give the node a larger pool")
	case errors.Is(err, ipam.ErrInUse), errors.Is(err, ipam.ErrConflict):
		return v1.NewError(v1.CodeConflict, err, "see the leases of the node; delete the owner's pod first")
	case errors.Is(err, ipam.ErrNotInPool), errors.Is(err, ipam.ErrUnknownPool):
		return v1.NewError(v1.CodeInvalid, err, "ask for an address and pool of this node")
	case errors.Is(err, ipam.ErrUnknownLease):
		return v1.NewError(v1.CodeNotFound, err, "ask for a new lease")
	}
	return err
}

// Release gives back the lease that holds an address, unless an endpoint has
// one of its addresses: that goes with the endpoint.
func (l *leases) Release(_ context.Context, addr netip.Addr, lease string) error {
	for _, held := range l.IPAM.Leases() {
		if !slices.Contains(held.Addrs(), addr) || lease != "" && held.ID != lease {
			continue
		}
		for _, a := range held.Addrs() {
			if n := l.user(a); n != 0 {
				return v1.Errorf(v1.CodeConflict, fmt.Sprintf("delete the pod, or the endpoint with DELETE /v1/endpoint/%d; its addresses go with it", n),
					"release %s: endpoint %d has %s", addr, n, a)
			}
		}
	}
	_, err := l.IPAM.Release(addr, lease)
	return err
}

// claim finds the lease of an endpoint's addresses, or makes one, before there is
// an endpoint; made says which.
func (l *leases) claim(r endpointapi.Request) (id string, made bool, err error) {
	var addrs []netip.Addr
	for _, a := range []netip.Addr{r.IPv4, r.IPv6} {
		if a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	pod := ""
	if r.PodName != "" {
		pod = workload.PodKey(r.PodNamespace, r.PodName)
	}
	lease, made, err := l.IPAM.Claim(r.Key(), pod, r.LeaseID, addrs...)
	if err == nil {
		return lease.ID, made, nil
	}
	field, next := "addressing", "lease addresses of a pool with POST /v1/ipam and give their leaseId, or name free ones; GET /v1/ipam shows pools and leases"
	if r.LeaseID != "" {
		field, next = "leaseId", "lease addresses with POST /v1/ipam for the owner "+r.Key()+" and give exactly these"
	}
	text := fmt.Errorf("field %s: %w", field, err)
	var e *v1.Error
	if !errors.As(leaseError(err), &e) {
		return "", false, text // the file
	}
	return "", false, v1.NewError(e.Code, text, next)
}

// confirm lets an endpoint take a lease over.
func (l *leases) confirm(id string) error {
	if err := l.IPAM.Confirm(id); err != nil {
		return leaseError(err)
	}
	return nil
}

// Leases lists pools and leases.
func (l *leases) Leases(context.Context) gen.IPAMStatus {
	s := gen.IPAMStatus{Pools: l.pools(), Leases: []gen.Lease{}}
	for _, lease := range l.IPAM.Leases() {
		s.Leases = append(s.Leases, leaseModel(lease))
	}
	return s
}

func (l *leases) pools() []gen.Pool {
	out := []gen.Pool{}
	for _, p := range l.IPAM.Pools() {
		m := gen.Pool{Name: p.Name, Used4: clip(p.Used4), Total4: clip(p.Size4), Used6: clip(p.Used6), Total6: clip(p.Size6)}
		if p.V4.IsValid() {
			m.Ipv4 = p.V4.String()
		}
		if p.V6.IsValid() {
			m.Ipv6 = p.V6.String()
		}
		out = append(out, m)
	}
	return out
}

func clip(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

func leaseModel(l ipam.Lease) gen.Lease {
	return gen.Lease{
		ID: l.ID, Owner: l.Owner, Pool: l.Pool, Ipv4: text(l.IPv4), Ipv6: text(l.IPv6),
		Gateway4: text(l.Gateway4), Gateway6: text(l.Gateway6), Expires: l.Expires,
	}
}

// text prints an address, or "" for none.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
