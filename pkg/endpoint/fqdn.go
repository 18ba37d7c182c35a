package endpoint

import "context"

// nameRefresher asks for the addresses of the DNS names that an endpoint's
// policy selects. The step of a build that uses it runs before the policy is
// resolved.
type nameRefresher interface {
	RefreshNames(ctx context.Context, id uint16) error
}

// RefreshNames brings the addresses behind DNS names in the endpoint's policy
// up to date. A nil refresher means that no policy can name a DNS name: there
// is nothing to refresh.
func (e *Endpoint) RefreshNames(ctx context.Context, r nameRefresher) error {
	if r == nil {
		return nil
	}
	return r.RefreshNames(ctx, e.ID)
}
