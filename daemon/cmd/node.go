package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/filesource/lastgood"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/upkeep"
)

// newKeeper keeps the node as pods need it.
func newKeeper(cfg *Config, l *leases, warnings *health.Registry, log *slog.Logger) *upkeep.Keeper {
	return upkeep.New(log, warnings, append(cfg.nodeSteps(func(routers []netip.Addr) { l.routers.Store(&routers) }), l.conflicts())...)
}

// nodeSteps are what agents with this configuration change on the node beside
// links of pods and their routes.
func (c *Config) nodeSteps(routers func([]netip.Addr)) []upkeep.Step {
	var pools []upkeep.Pool
	for _, p := range []upkeep.Pool{{Setting: "ipv4-pool", Prefix: c.pool.v4, Gateway: c.pool.gw4}, {Setting: "ipv6-pool", Prefix: c.pool.v6, Gateway: c.pool.gw6}} {
		if p.Prefix.IsValid() {
			pools = append(pools, p)
		}
	}
	return []upkeep.Step{
		upkeep.Overlaps(pools, c.AllowPoolOverlap, routers),
		upkeep.DefaultRoutes(),
		upkeep.Settings(filepath.Join(c.StateDir, "sysctls.json"), c.pool.v4.IsValid(), c.pool.v6.IsValid()),
		upkeep.Addresses(pools),
		upkeep.Routes(route.Table(c.RouteTable), pools),
		upkeep.Forward(pools, c.AcceptForward),
		upkeep.Bandwidth(),
	}
}

// conflistStep keeps the CNI configuration in place.
func conflistStep(c api.Conflist) upkeep.Step {
	return upkeep.Step{Name: "CNI configuration", Ensure: func(context.Context) (r upkeep.Result, err error) {
		was, err := c.Write()
		if was != "" {
			r.Changed = []string{"the CNI configuration " + c.Path() + " was " + was}
		}
		return r, err
	}}
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
	errs = []error{os.RemoveAll(c.BPFRoot), upkeep.New(nil, nil, c.nodeSteps(nil)...).Undo(context.Background())}
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
