package cmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirnet/weir/pkg/datapath/link"
)

// gc removes the endpoints, and their links, of attachments that the runtime
// does not list as valid (CNI spec 1.1). It goes on after a failure and
// returns all of them.
func (p *plugin) gc(ctx context.Context, r *run) error {
	valid := map[string]bool{}
	for _, a := range r.conf.ValidAttachments {
		valid[link.HostName(a.ContainerID, a.IfName)] = true
	}
	endpoints, err := r.client.Endpoints(ctx, nil, nil)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range endpoints {
		name := link.HostName(e.ContainerID, e.Interface.ContainerName)
		// Another name means that the endpoint is not of this plugin's making.
		if valid[name] || e.Interface.HostName != name {
			continue
		}
		r.log.Info("removing the endpoint of an attachment that is gone", "endpoint", e.ID, "container", e.ContainerID)
		if _, err := r.client.DeleteContainer(ctx, e.ContainerID, e.Interface.ContainerName); err != nil {
			failed = append(failed, fmt.Errorf("endpoint %d of container %s: %w", e.ID, e.ContainerID, err))
			continue
		}
		if err := r.links.remove(ctx, name); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
