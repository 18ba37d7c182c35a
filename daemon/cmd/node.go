package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/weirnet/weir/pkg/identity/cache"
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
// while an agent runs. A dry run only says what it would remove.
func cleanUp(c *Config, dry bool, out io.Writer) error {
	if dry {
		return listCleanUp(c, out)
	}
	lock, err := lockState(c)
	if err != nil {
		return err
	}
	defer lock.close()
	if _, err := os.Stat(c.BPFRoot); err == nil {
		pins, err := lockRoot(c.BPFRoot)
		if err != nil {
			return err
		}
		defer pins.close()
	}
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
	for _, path := range c.durable() {
		errs = append(errs, os.RemoveAll(path))
	}
	os.Remove(c.DataDir) // fails while something else is in it
	return errors.Join(append(errs, os.RemoveAll(c.StateDir), os.RemoveAll(c.RunDir))...)
}

// settingsDir holds the settings of pods, below the data directory.
const settingsDir = "settings"

// durable lists what agents keep in the data directory. One that was given by
// mistake may hold more.
func (c *Config) durable() []string {
	names := append(lastgood.Folders(), settingsDir)
	found, _ := filepath.Glob(filepath.Join(c.DataDir, cache.FileName+"*")) // with those set aside
	for _, name := range names {
		found = append(found, filepath.Join(c.DataDir, name))
	}
	return found
}

// listCleanUp says what cleanUp would remove.
func listCleanUp(c *Config, out io.Writer) error {
	ours, others, err := podLinks()
	if err != nil {
		return err
	}
	for _, h := range ours {
		fmt.Fprintf(out, "link %s (%d)%s\n", h.Name, h.Index, podOf(h))
	}
	for _, h := range others {
		fmt.Fprintf(out, "not link %s (%d): it is not marked as Weir's and runs no program of Weir's\n", h.Name, h.Index)
	}
	routes, err := route.Table(c.RouteTable).List()
	for _, r := range routes {
		fmt.Fprintf(out, "route to %s\n", r.Addr)
	}
	kept, failed := upkeep.New(nil, nil, c.nodeSteps(nil)...).List(context.Background())
	for _, what := range kept {
		fmt.Fprintln(out, what)
	}
	err = errors.Join(err, failed)
	paths := append([]string{c.BPFRoot, c.StateDir, c.RunDir}, c.durable()...)
	if c.CNIConfDir != "" {
		paths = append(paths, api.Conflist{Dir: c.CNIConfDir}.Path())
	}
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			fmt.Fprintln(out, p)
		}
	}
	return err
}

func podOf(h link.Host) string {
	if h.Mark.Pod == "" {
		return ""
	}
	return " of pod " + h.Mark.Namespace + "/" + h.Mark.Pod
}

// podLinks are the links of pods, and others that only have such names: those whose
// alias says that they are ours, and those of builds that did not mark them, which
// run our programs.
func podLinks() (ours, others []link.Host, err error) {
	all, err := link.List()
	if err != nil {
		return nil, nil, err
	}
	for _, h := range all {
		runs := attach.Attached{}
		if !h.Marked {
			if runs, err = attach.Query(h.Index); err != nil {
				return nil, nil, err
			}
		}
		if h.Marked || runs.From != 0 || runs.To != 0 {
			ours = append(ours, h)
		} else {
			others = append(others, h)
		}
	}
	return ours, others, nil
}

// removeLinks deletes the links of pods that are still there.
func removeLinks() error {
	hosts, _, err := podLinks()
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
