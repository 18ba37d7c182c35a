package cmd

import (
	"context"
)

// del detaches a container: the endpoint first, so that nothing is delivered to
// a link that goes, then the link. Nothing there is a success, and neither the
// namespace nor its path is needed: the pair goes with its end on the node.
func (p *plugin) del(ctx context.Context, r *run) error {
	queued, err := r.client.DeleteOrQueue(ctx, r.conf.RunDir, r.args.ContainerID, r.args.IfName)
	if queued {
		r.log.Warn("the agent takes no deletions now; it is queued, and the agent carries it out when it is there", "run-dir", r.conf.RunDir)
	}
	// The link goes even when the agent could not be told: a pod that the
	// runtime gave up must not talk any more.
	if linkErr := r.links.remove(ctx, r.hostName(), 0); linkErr != nil {
		r.log.Warn("the link could not be removed; it goes with the namespace", "error", linkErr)
	}
	return err
}
