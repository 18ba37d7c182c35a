package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/datapath/sysctl"
	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/health"
)

// setUpNode changes what the node needs: kernel settings, which are remembered
// in the state directory, and the node's own addresses in the pools.
func (c *Config) setUpNode(context.Context) error {
	changes, err := sysctl.Open(c.sysctlFile())
	if err != nil {
		return err
	}
	if err := changes.Apply(sysctl.NodeSettings(c.pool.v4.IsValid(), c.pool.v6.IsValid())); err != nil {
		return err
	}
	for _, a := range c.gateways() {
		if err := link.EnsureNodeAddress(a); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) sysctlFile() string { return filepath.Join(c.StateDir, "sysctls.json") }

func (c *Config) gateways() []netip.Addr {
	var out []netip.Addr
	for _, a := range []netip.Addr{c.pool.gw4, c.pool.gw6} {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// warnOfForwardPolicy tells of a packet filter that may drop what pods send out.
func (a *agent) warnOfForwardPolicy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, where, err := sysctl.ForwardPolicy(ctx)
	switch {
	case err != nil:
		a.log.Warn("Cannot tell whether the node's packet filter drops forwarded packets", "error", err)
	case answer == sysctl.ForwardDrop:
		a.warnings.Set(health.Warning{Code: "packet-filter", Subject: where, Breaks: health.BreaksPods, Text: where + " drops forwarded packets by default; pods may not reach the outside", Next: "accept forwarded packets from and to the pods' addresses there"})
	}
}

// cleanUp undoes what agents with this configuration left on the node: the CNI
// configuration, links of pods, routes, pins, kernel settings, state. It refuses
// while an agent runs.
func cleanUp(c *Config) error {
	lock, err := lockState(c.StateDir)
	if err != nil {
		return err
	}
	defer lock.close()
	errs := []error{removeLinks(), removeRoutes(route.Table(c.RouteTable))}
	if c.CNIConfDir != "" {
		errs = append(errs, api.Conflist{Dir: c.CNIConfDir}.Remove())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cleaning up: %w", err) // pins stay while programs may need them
	}
	errs = []error{os.RemoveAll(c.BPFRoot)}
	changes, err := sysctl.Open(c.sysctlFile())
	if err == nil {
		_, err = changes.Undo()
	}
	errs = append(errs, err)
	for _, a := range c.gateways() {
		errs = append(errs, link.RemoveNodeAddress(a))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return errors.Join(lastgood.Remove(c.DataDir), os.RemoveAll(c.StateDir), os.RemoveAll(c.RunDir))
}

// removeLinks deletes the links of pods that are still there.
func removeLinks() error {
	hosts, err := link.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hosts {
		errs = append(errs, attach.Detach(h.Index), link.Delete(h.Name))
	}
	return errors.Join(errs...)
}

func removeRoutes(t route.Table) error {
	routes, err := t.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range routes {
		errs = append(errs, t.Remove(r.Addr))
	}
	return errors.Join(errs...)
}
