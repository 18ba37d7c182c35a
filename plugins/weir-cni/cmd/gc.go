package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/weirnet/weir/pkg/datapath/link"
)

// gc removes the endpoints, and their links, of the attachments of this network that
// the runtime does not list as valid (CNI spec 1.1). Those of other networks, and
// those whose network is not known, are not its business. It goes on after a failure
// and returns all of them.
func (p *plugin) gc(ctx context.Context, r *run) error {
	valid, given, err := r.conf.valid()
	if err != nil {
		return err
	}
	if !given {
		const text = "GC names no cni.dev/valid-attachments: nothing is collected"
		fmt.Fprintln(p.stderr, "weir-cni: "+text)
		r.log.Warn(text, "network", r.conf.Name)
		return nil
	}
	endpoints, err := r.client.Endpoints(ctx, nil, nil)
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range endpoints {
		at := types.GCAttachment{ContainerID: e.ContainerID, IfName: e.Interface.ContainerName}
		if e.Network != r.conf.Name || valid[at] {
			continue
		}
		r.log.Info("removing the endpoint of an attachment that is gone", "endpoint", e.ID, "container", e.ContainerID)
		if _, err := r.client.DeleteContainer(ctx, at.ContainerID, at.IfName); err != nil {
			failed = append(failed, fmt.Errorf("endpoint %d of container %s: %w", e.ID, e.ContainerID, err))
			continue
		}
		if err := r.links.remove(ctx, link.HostName(at.ContainerID, at.IfName), e.Interface.HostIndex); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// valid is the list of attachments that are still there; given is false where the
// runtime gave none. A list that cannot be read whole collects nothing.
func (c *NetConf) valid() (valid map[types.GCAttachment]bool, given bool, err error) {
	for _, f := range []struct {
		name string
		text json.RawMessage
	}{{"cni.dev/valid-attachments", c.ValidAttachments}, {"cni.dev/attachments", c.Attachments}} {
		if text := bytes.TrimSpace(f.text); len(text) == 0 || string(text) == "null" {
			continue
		}
		var list []types.GCAttachment
		if err := json.Unmarshal(f.text, &list); err != nil {
			return nil, false, badConfig("field %s: must be a list of objects with containerID and ifname", f.name)
		}
		valid = map[types.GCAttachment]bool{}
		for i, a := range list {
			if a.ContainerID == "" || a.IfName == "" {
				return nil, false, badConfig("field %s[%d]: containerID and ifname must both be given", f.name, i)
			}
			valid[a] = true
		}
		return valid, true, nil
	}
	return nil, false, nil
}
