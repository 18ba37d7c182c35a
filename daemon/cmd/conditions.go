package cmd

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/policy"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// conditionsCheck is how often the conditions are looked at, so that a warning
// knows when its cause began.
const conditionsCheck = 3 * time.Second

// buildPatience is how long an endpoint may be on its way to be ready before that
// is a warning.
const buildPatience = 5 * time.Second

// Codes of the warnings that are made here.
const (
	codeAudit       = "audit"
	codeConnections = "connections"
	codeEnforcement = "enforcement"
	codeEvents      = "events"
	codeIPCache     = "ipcache"
	codeNoLabels    = "no-labels"
	codeNotReady    = "not-ready"
	codePolicyMap   = "policy-map"
	codePortNames   = "port-names"
)

// conditions turns what the modules hold into warnings. A module that knows when
// something begins and ends sets its warning itself.
type conditions struct {
	agent *agent
	node  policytypes.Mode

	mu        sync.Mutex // one look at a time, so that an older one does not come last
	lost      uint64     // events, when the agent started
	lostKnown bool
	ports     portNamesSeen
	waiting   map[uint16]time.Time // endpoints that are not ready, and since when
}

func newConditions(a *agent, node policytypes.Mode) *conditions {
	return &conditions{agent: a, node: node, waiting: map[uint16]time.Time{}}
}

// portNamesSeen are the unknown port names of what the resolver knew then.
type portNamesSeen struct {
	index    *policy.Index
	revision uint64
	pods     int
	names    []string
}

// run looks again and again until ctx ends.
func (c *conditions) run(ctx context.Context) error {
	t := time.NewTicker(conditionsCheck)
	defer t.Stop()
	for {
		c.look()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// look sets the warnings as things are now.
func (c *conditions) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, w := c.agent, c.agent.warnings
	rows := a.endpoints.Manager.Rows()
	for code, ws := range endpointWarnings(rows, c.node) {
		w.Replace(code, ws...)
	}
	w.Replace(codeNotReady, notReady(rows, c.waiting, time.Now())...)
	w.Replace(codePortNames, portWarnings(c.unknownPorts(rows))...)
	w.Replace(codeIPCache, ipcacheWarnings(a.ipcache.Problem())...)
	w.Replace(codeConnections, when(a.maps.crowded.Load(), health.Warning{
		Text: "the table of connections is full or nearly; the kernel forgets those that were longest unused, and judges their next packet anew",
		Next: "raise conntrack-entries and restart the agent, which costs no connection; who fills it: weir bpf ct",
	})...)
	w.Replace(codeEvents, c.lostEvents()...)
}

// lostEvents tells of events that found no room since the agent started: those of
// before were lost while nobody read them.
func (c *conditions) lostEvents() []health.Warning {
	lost, err := c.agent.maps.Metrics.LostEvents()
	if err != nil {
		return nil
	}
	if !c.lostKnown {
		c.lost, c.lostKnown = lost, true
	}
	return when(lost > c.lost, health.Warning{
		Text: fmt.Sprintf("%d events found no room in the ring since the agent started; weir monitor did not show them", lost-c.lost),
		Next: "raise event-buffer and restart the agent",
	})
}

// unknownPorts asks the resolver where it knows something new.
func (c *conditions) unknownPorts(rows []*endpoint.Row) []string {
	now := portNamesSeen{index: c.agent.repo.Index(), revision: c.agent.repo.Revision()}
	for _, r := range rows {
		if r.State.Alive() && r.Identity != 0 {
			now.pods++
		}
	}
	if s := c.ports; s.index != now.index || s.revision != now.revision || s.pods != now.pods {
		now.names = c.agent.unknownPorts()
		c.ports = now
	}
	return c.ports.names
}

// when is a warning if its condition holds.
func when(holds bool, w health.Warning) []health.Warning {
	if !holds {
		return nil
	}
	return []health.Warning{w}
}

// who names an endpoint for people.
func who(r *endpoint.Row) string {
	if r.Pod.Known() {
		return fmt.Sprintf("endpoint %d (%s)", r.ID, r.Pod)
	}
	return fmt.Sprintf("endpoint %d", r.ID)
}

// endpointWarnings are those of the endpoints by code; each code is there, so that
// a warning whose cause is gone goes.
func endpointWarnings(rows []*endpoint.Row, node policytypes.Mode) map[string][]health.Warning {
	out := map[string][]health.Warning{codeAudit: nil, codeEnforcement: nil, codePolicyMap: nil, codeNoLabels: nil}
	for _, r := range rows {
		add := func(code string, w health.Warning) {
			w.Subject = fmt.Sprintf("endpoint %d", r.ID)
			out[code] = append(out[code], w)
		}
		if r.Audits() {
			add(codeAudit, health.Warning{Breaks: health.BreaksEnforcement,
				Text: who(r) + " is in audit mode: what its policies deny is let through, and only told of",
				Next: fmt.Sprintf("weir endpoint audit %d off", r.ID)})
		}
		if mode, own := r.EnforcementInForce().Own(); own && laxer(mode, node) {
			add(codeEnforcement, health.Warning{Breaks: health.BreaksEnforcement,
				Text: fmt.Sprintf("%s has a mode of its own, %s, which allows more than the node's, %s", who(r), mode, node),
				Next: fmt.Sprintf("weir endpoint enforcement %d node", r.ID)})
		}
		if r.Degraded != "" {
			add(codePolicyMap, health.Warning{Breaks: health.BreaksPods, Failing: true,
				Text: who(r) + " is denied more than its policies say, which do not fit the map: " + r.Degraded,
				Next: "raise policy-entries and restart the agent, or make the policies smaller"})
		}
		if r.State.Alive() && r.Identity == identity.ReservedInit {
			add(codeNoLabels, health.Warning{Breaks: health.BreaksPods,
				Text: who(r) + " has no labels, so that no policy can select it by them and what is not allowed to reserved:init is denied",
				Next: fmt.Sprintf("give the pod an object with labels in the source folder; why there are none: weir endpoint log %d", r.ID)})
		}
	}
	return out
}

// notReady are the endpoints that are not ready for longer than a build takes.
// begun has since when each is not, and is kept up to date.
func notReady(rows []*endpoint.Row, begun map[uint16]time.Time, now time.Time) (out []health.Warning) {
	waiting := map[uint16]bool{}
	for _, r := range rows {
		if !r.State.Alive() || r.Reason == "" {
			continue
		}
		waiting[r.ID] = true
		since, known := begun[r.ID]
		if !known {
			since, begun[r.ID] = now, now
		}
		if now.Sub(since) >= buildPatience {
			out = append(out, health.Warning{Subject: fmt.Sprintf("endpoint %d", r.ID), Breaks: health.BreaksPods, Since: since,
				Text: fmt.Sprintf("%s is %s: %s", who(r), r.State, r.Reason), Next: fmt.Sprintf("weir endpoint log %d", r.ID)})
		}
	}
	maps.DeleteFunc(begun, func(id uint16, _ time.Time) bool { return !waiting[id] })
	return out
}

func portWarnings(names []string) (out []health.Warning) {
	for _, n := range names {
		out = append(out, health.Warning{Subject: n, Text: "port name " + n + " is one that no pod gives, so that the rule opens nothing by it",
			Next: "name the port in a pod, or give its number in the rule; see: weir policy lint"})
	}
	return out
}

func ipcacheWarnings(problem error) []health.Warning {
	if problem == nil {
		return nil
	}
	return []health.Warning{{Breaks: health.BreaksPods, Failing: true, Text: fmt.Sprint("the kernel's prefixes are behind: ", problem),
		Next: "see the agent's log; it tries again by itself"}}
}
