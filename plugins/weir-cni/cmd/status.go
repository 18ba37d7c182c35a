package cmd

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// status says whether an ADD would be served (CNI spec 1.1): error 50 when not.
func (p *plugin) status(ctx context.Context, r *run) error {
	s, err := r.client.Status(ctx)
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "start weir-agent")
	}
	if s.Ready {
		return nil
	}
	next := "run weir status"
	for _, c := range s.Components {
		if c.Next != "" {
			next = c.Next
			break
		}
	}
	return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("the agent is not ready: %s", s.Summary), next)
}
