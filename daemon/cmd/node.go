package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/datapath/sysctl"
	"github.com/weirnet/weir/pkg/health"
)

// setUpNode changes what the node needs: kernel settings, which are remembered
// in the state directory, and the node's own addresses in the pools.
func (c *Config) setUpNode(context.Context) error {
	changes, _ := sysctl.Open(c.sysctlFile()) // one that was set aside is shown with the others
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
	errs = []error{os.RemoveAll(c.BPFRoot)}
	changes, damage := sysctl.Open(c.sysctlFile())
	if damage != nil {
		fmt.Fprintf(out, "kernel settings of before are not known and stay as they are: %v\n", damage)
	}
	_, err = changes.Undo()
	errs = append(errs, err)
	for _, a := range c.gateways() {
		errs = append(errs, link.RemoveNodeAddress(a))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return errors.Join(os.RemoveAll(c.StateDir), os.RemoveAll(c.RunDir), os.RemoveAll(c.DataDir))
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
	for _, a := range c.gateways() {
		fmt.Fprintf(out, "address %s on lo\n", a)
	}
	paths := []string{c.BPFRoot, c.StateDir, c.RunDir, c.DataDir}
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
