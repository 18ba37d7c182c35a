package cmd

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/health"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/spell"
	"github.com/weirnet/weir/pkg/version"
)

// agentStatus is what the agent says of itself (pkg/api statusSource).
type agentStatus struct {
	agent   *agent
	started time.Time

	mu    sync.Mutex
	ready bool
	doing string // what start-up is at
}

// step says what start-up is at.
func (h *agentStatus) step(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doing = what
}

// becomeReady says that CNI requests are taken.
func (h *agentStatus) becomeReady() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready, h.doing = true, ""
}

// Status judges the agent: failing beats starting beats warning beats ok.
func (h *agentStatus) Status(context.Context) gen.Status {
	h.mu.Lock()
	s := gen.Status{APIVersion: v1.Version, Version: version.String(), Started: h.started, Ready: h.ready, Verdict: gen.StateOk}
	doing := h.doing
	h.mu.Unlock()
	if !s.Ready {
		s.Components = append(s.Components, gen.Component{Name: "start", State: gen.StateStarting, Message: doing, Next: "wait, or see the agent's log"})
	}
	h.agent.tellAside()
	for _, w := range h.agent.warnings.List() {
		s.Components = append(s.Components, warningModel(w))
	}
	s.Components = append(s.Components, h.agent.components()...)
	s.Endpoints = h.agent.api.counts()
	worst := ""
	for _, c := range s.Components {
		if badness[c.State] > badness[s.Verdict] {
			s.Verdict, worst = c.State, c.Name+": "+c.Message
		}
	}
	if s.Summary = "all is well"; worst != "" {
		s.Summary = worst
	}
	return s
}

// warningModel is a warning as the API shows it.
func warningModel(w health.Warning) gen.Component {
	c := gen.Component{Name: w.Code, Subject: w.Subject, State: gen.StateWarning, Message: w.Text, Breaks: gen.Breaks(w.Breaks), Next: w.Next, Since: w.Since}
	if w.Failing {
		c.State = gen.StateFailing
	}
	return c
}

var badness = map[gen.State]int{gen.StateOk: 0, gen.StateWarning: 1, gen.StateStarting: 2, gen.StateFailing: 3}

// components looks at the parts that can go wrong while the agent runs.
func (a *agent) components() []gen.Component {
	var out []gen.Component
	add := func(name string, bad bool, state gen.State, message, next string) {
		if !bad {
			state, message, next = gen.StateOk, "", ""
		}
		out = append(out, gen.Component{Name: name, State: state, Message: message, Next: next})
	}
	problems := a.source.Problems()
	message := ""
	if wrong := filesource.Errors(problems); len(wrong) > 0 {
		message = fmt.Sprintf("%s in the source; %s; first: %s", spell.Count(len(wrong), "problem"), inForce(a.source.NeverGood()), wrong[0])
	} else if len(problems) > 0 {
		message = fmt.Sprintf("policies name what is not there: %s; first: %s", spell.Count(len(problems), "object"), problems[0])
	}
	add("source", message != "", gen.StateWarning, message, "weir policy validate "+a.cfg.SourceDir)
	unknown := append(a.unknownPorts(), "")
	add("port names", len(unknown) > 1, gen.StateWarning, fmt.Sprintf("port names of policies that match no pod: %d; first: %s", len(unknown)-1, unknown[0]), "name the port in a pod or give its number; see: weir policy lint")
	problem := a.ipcache.Problem()
	add("ipcache", problem != nil, gen.StateFailing, fmt.Sprint("the kernel's prefixes are behind: ", problem), "see the agent's log; it tries again by itself")
	degraded, audits, waiting := 0, 0, ""
	for _, r := range a.endpoints.Manager.Rows() {
		if r.Degraded != "" {
			degraded++
		}
		if r.Audits() {
			audits++
		}
		if r.Reason != "" && r.State.Alive() && waiting == "" {
			waiting = fmt.Sprintf("endpoint %d is %s: %s", r.ID, r.State, r.Reason)
		}
	}
	add("audit", audits > 0, gen.StateWarning, spell.Count(audits, "endpoint")+" in audit mode: what the policy denies is let through", "weir endpoint audit ID off; see: weir endpoint list")
	node, _ := policytypes.ParseMode(a.cfg.Enforcement) // checked when the agent started
	modes, loose := ownModes(node, a.endpoints.Manager.Rows())
	add("enforcement", loose, gen.StateWarning, modes, "weir endpoint enforcement ID node; see: weir endpoint list")
	out[len(out)-1].Message = modes // also where they allow less
	add("policy maps", degraded > 0, gen.StateFailing, "too large for the map, which allows less than the policy: that of "+spell.Count(degraded, "endpoint"), "raise policy-entries, or make the policies smaller; see: weir endpoint list")
	add("connections", a.maps.crowded.Load(), gen.StateWarning, "their table is full or nearly: the kernel forgets those longest unused and judges their next packet anew", "raise conntrack-entries and restart the agent, which costs no connection; who fills it: weir bpf ct")
	add("endpoints", waiting != "", gen.StateWarning, waiting, "weir endpoint list")
	lost, err := a.maps.Metrics.LostEvents()
	add("events", err == nil && lost > 0, gen.StateWarning, fmt.Sprintf("%d events found no room in the ring", lost), "raise event-buffer and restart the agent")
	return out
}

// inForce says what stands in for wrong files, of which never were never good.
func inForce(never, wrong int) string {
	switch never {
	case 0:
		return "the last good version is in force"
	case wrong:
		return "there was no good version yet, so nothing of it is in force"
	}
	return "the last good version is in force, where there was one"
}

// Config tells how the agent was configured.
func (h *agentStatus) Config(context.Context) gen.Config {
	c := h.agent.cfg
	return gen.Config{
		APIVersion: v1.Version, Version: version.String(), BpffsRoot: c.BPFRoot, ClusterName: c.ClusterName, CniConfDir: c.CNIConfDir, ConfigFile: c.ConfigFile,
		DefaultPool: defaultPool, Gateway: gen.Addressing{Ipv4: text(c.pool.gw4), Ipv6: text(c.pool.gw6)}, Ipv4: c.pool.v4.IsValid(), Ipv6: c.pool.v6.IsValid(),
		Mtu: c.MTU, NodeName: c.NodeName, PolicyDir: c.SourceDir, PolicyMode: gen.ConfigPolicyMode(c.Enforcement), Pools: h.agent.leases.pools(),
		RunDir: c.RunDir, Socket: c.SocketPath, StateDir: c.StateDir,
	}
}

// Maps tells the memory of the maps.
func (h *agentStatus) Maps(context.Context) ([]gen.MapInfo, error) {
	return h.agent.maps.infos(h.agent.root)
}
