package cmd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/attach"
	"github.com/weirnet/weir/pkg/datapath/link"
	"github.com/weirnet/weir/pkg/datapath/pinned"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/survey"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	"github.com/weirnet/weir/pkg/maps/ctmap"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// bootID is that of this boot; empty: it cannot be read, and records count as they did
// before they had one.
func bootID(log *slog.Logger) string {
	boot, err := bpf.BootID()
	if err != nil {
		log.Warn("Cannot tell this boot from another", "error", err)
	}
	return boot
}

// recoverPins puts back the pins of maps that are gone while programs still use the maps.
func recoverPins(root bpf.Root, log *slog.Logger) error {
	var programs []ebpf.ProgramID
	links, err := link.List()
	for _, h := range links {
		a, failed := attach.Query(h.Index)
		if failed != nil {
			err = failed
			continue
		}
		programs = append(programs, ebpf.ProgramID(a.From), ebpf.ProgramID(a.To))
	}
	if err != nil {
		log.Warn("Not all links were asked for their programs", "error", err)
	}
	put, err := pinned.Recover(root, programs)
	if len(put) > 0 {
		log.Warn("Pins of maps were gone and are put back from the programs that use the maps", "maps", strings.Join(put, ", "))
	}
	return err
}

// newSurvey looks at what outlived the last agent.
func newSurvey(cfg *Config, s *state, l *leases, log *slog.Logger) (*survey.Survey, error) {
	leased := l.IPAM.Leases()
	return survey.Take(survey.Config{
		Logger: log, StateDir: filepath.Join(cfg.StateDir, "endpoints"), BootID: s.boot, Links: link.List, Attached: attach.Query,
		Endpoints: s.maps.LXC, Addresses: s.maps.IPCache, Words: s.maps.Config, Routes: route.Table(cfg.RouteTable),
		Owner: func(a netip.Addr) (string, string) {
			for _, x := range leased {
				if slices.Contains(x.Addrs(), a) {
					return x.Owner, x.Pod
				}
			}
			return "", ""
		},
	})
}

// newSettings opens what was set of pods, over reboots.
func newSettings(cfg *Config, _ *state, log *slog.Logger) (*endpoint.SettingsBook, error) {
	book, damage, err := endpoint.OpenSettings(filepath.Join(cfg.DataDir, settingsDir))
	if damage != nil {
		log.Error("Settings of pods are lost, but for those of endpoints that are there", "error", damage)
	}
	return book, err
}

// restore brings the endpoints of the last agent back, with their leases, and keeps
// what other links have from being given out.
func (a *agent) restore(ctx context.Context) error {
	a.found.Label(a.identities.Held, a.metadata.Labels, a.identities.Hold)
	report := a.endpoints.Manager.Restore(ctx, a.found.Records)
	a.restored = report.Restored
	for _, e := range slices.Concat(report.Restored, report.Kept) {
		r := e.Row()
		a.lease(r.Attachment(), r.Pod.String(), fmt.Sprintf("endpoint %d", r.ID), r.Addrs())
		a.mark(r)
	}
	var warnings []health.Warning
	for _, e := range report.Kept {
		r := e.Row()
		if err := a.keepNumber(ctx, r.Identity); err != nil {
			return err
		}
		for _, addr := range r.Addrs() {
			a.ipcache.Publish(addr, fmt.Sprintf("endpoint/%d", r.ID), r.Identity)
		}
		warnings = append(warnings, health.Warning{Subject: r.HostInterface, Breaks: health.BreaksPods,
			Text: fmt.Sprintf("endpoint %d has lost its record, and its labels are not known: it keeps identity %d and its policy as they are", r.ID, r.Identity),
			Next: "give the source its Pod object, or attach the pod again"})
	}
	for _, o := range a.found.Orphans {
		a.endpoints.Manager.Reserve(o.Number)
		a.keepSlot(o)
		a.lease("link:"+o.Link.Name, "", "link "+o.Link.Name, o.Addrs)
		warnings = append(warnings, health.Warning{Subject: o.Link.Name, Breaks: health.BreaksPods,
			Text: fmt.Sprintf("link %s is of a pod that no endpoint can be made for: %s; it stays as it is in the kernel", o.Link.Name, o.Reason),
			Next: "attach its pod again"})
	}
	a.warnings.Replace("orphan-link", warnings...)
	for _, err := range report.Failed {
		a.log.Error("An endpoint is not restored", "error", err)
	}
	a.maps.Slots.ReleaseUnadopted()
	return nil
}

// keepNumber holds an identity number whose labels nobody knows. The policy is not
// told of it, so that no rule is made for it: what was allowed it by its labels ends
// with the next build of the other pod, and nothing is allowed it that was not.
func (a *agent) keepNumber(ctx context.Context, n identity.NumericIdentity) error {
	unknown := labels.NewLabelArray(labels.New("weir", "labels-are-lost", n.String()))
	_ = a.identities.Hold(n, unknown) // the second endpoint of a number finds it held
	if _, _, err := a.identities.Allocate(ctx, unknown); err != nil {
		return fmt.Errorf("keeping identity %s: %w", n, err)
	}
	return nil
}

// lease makes sure that nobody else gets addresses.
func (a *agent) lease(owner, pod, who string, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	if _, err := a.leases.Restore(owner, pod, addrs...); err != nil {
		a.warnings.Set(health.Warning{Code: "leases", Subject: owner, Breaks: health.BreaksPods, Text: fmt.Sprintf("%s keeps addresses that are not leased: %v", who, err), Next: "attach the pod again"})
	}
}

// mark writes on a link of a former build, or of a record that was made, what it is.
func (a *agent) mark(r *endpoint.Row) {
	want := link.Mark{Endpoint: r.ID, Container: r.ContainerID, Interface: r.ContainerInterface, PodMAC: r.MAC, Network: r.Network, UID: r.Pod.UID, Namespace: r.Pod.Namespace, Pod: r.Pod.Name}
	h, err := link.ByIndex(r.IfIndex)
	if err == nil && h.Mark != want {
		err = link.SetMark(r.IfIndex, want)
	}
	if err != nil {
		a.log.Warn("Link not marked as ours", "endpoint", r.ID, "error", err)
	}
}

// keepSlot holds the slot that an orphan's programs read.
func (a *agent) keepSlot(o survey.Orphan) {
	if o.Number == 0 || a.endpoints.Manager.ByID(o.Number) != nil {
		return
	}
	slot, _, err := a.maps.Config.Policy(o.Number)
	if err == nil && slot != 0 {
		err = a.maps.Slots.Adopt(slot, "link "+o.Link.Name)
	}
	if err != nil {
		a.log.Warn("Policy of a link without endpoint not held", "interface", o.Link.Name, "error", err)
	}
}

// tellAside shows what was set aside until somebody removes it.
func (a *agent) tellAside() {
	all, err := atomicfile.ListAside(a.cfg.RunDir, a.cfg.StateDir, a.cfg.DataDir)
	if err != nil {
		a.log.Warn("Cannot look for what was set aside", "error", err)
	}
	var out []health.Warning
	seen := map[string]bool{}
	for _, x := range all {
		if seen[x.Path] { // one directory is mostly inside another
			continue
		}
		seen[x.Path] = true
		w := health.Warning{Subject: x.Path, Since: x.Since, Text: x.Of + " could not be used and was set aside as " + x.Path + "; what it held was made anew from records and kernel as far as they have it",
			Next: "look at it, then remove it: rm -r " + x.Path}
		switch {
		case filepath.Base(x.Of) == "endpoint.json":
			w.Breaks = health.BreaksPods
		case filepath.Base(filepath.Dir(x.Of)) == settingsDir:
			w.Breaks = health.BreaksEnforcement // a pod that comes later may miss an enforcement of its own
		}
		out = append(out, w)
	}
	a.warnings.Replace("set-aside", out...)
}

// identities are the numbers that the kernel holds in any map. What cannot be read
// holds none.
func (m *kernelMaps) identities(log *slog.Logger) []identity.NumericIdentity {
	seen := map[uint32]bool{}
	prefixes, err := m.IPCache.Dump()
	if err != nil {
		log.Warn("Identities of prefixes in the kernel are not all known", "error", err)
	}
	for _, e := range prefixes {
		seen[e.Identity], seen[e.PrefixIdentity] = true, true
	}
	endpoints, err := m.LXC.Dump()
	if err != nil {
		log.Warn("Identities of endpoints in the kernel are not all known", "error", err)
	}
	for _, i := range endpoints {
		seen[i.Identity], seen[i.PrefixIdentity] = true, true
	}
	m.eachLine(log, func(identity, _ uint32) { seen[identity] = true })
	var out []identity.NumericIdentity
	for id := range seen {
		if id != 0 {
			out = append(out, identity.NumericIdentity(id))
		}
	}
	return out
}

// greatestRule is the greatest rule number in any map.
func (m *kernelMaps) greatestRule(log *slog.Logger) policytypes.RuleID {
	greatest := uint32(0)
	m.eachLine(log, func(_, rule uint32) { greatest = max(greatest, rule) })
	for _, ct := range []*ctmap.Map{m.CT4, m.CT6} {
		err := ct.Each(func(f ctmap.Flow) bool { greatest = max(greatest, f.EgressRule, f.IngressRule); return true })
		if err != nil {
			log.Warn("Rule numbers of connections in the kernel are not all known", "error", err)
		}
	}
	return policytypes.RuleID(greatest)
}

// eachLine reads the policies in force.
func (m *kernelMaps) eachLine(log *slog.Logger, fn func(identity, rule uint32)) {
	seen := map[uint32]bool{0: true}
	for id := range uint16(lxcmap.MaxEndpoints) {
		slot, _, err := m.Config.Policy(id)
		if err != nil || seen[slot] {
			continue
		}
		seen[slot] = true
		lines, err := m.Slots.Dump(slot)
		if err != nil {
			log.Warn("A policy in force cannot be read", "endpoint", id, "slot", slot, "error", err)
		}
		for k, e := range lines {
			fn(k.Identity, e.Rule)
		}
	}
}
