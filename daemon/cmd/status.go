package cmd

import (
	"context"
	"sync"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/version"
)

// agentStatus is what the agent says of itself (pkg/api statusSource).
type agentStatus struct {
	agent      *agent
	conditions *conditions
	started    time.Time

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
	h.conditions.look()
	h.agent.tellAside()
	for _, w := range h.agent.warnings.List() {
		s.Components = append(s.Components, warningModel(w))
	}
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

// badness orders verdicts.
var badness = map[gen.State]int{gen.StateOk: 0, gen.StateWarning: 1, gen.StateStarting: 2, gen.StateFailing: 3}

// warningModel is a warning as the API shows it.
func warningModel(w health.Warning) gen.Component {
	c := gen.Component{Name: w.Code, Subject: w.Subject, State: gen.StateWarning, Message: w.Text, Breaks: gen.Breaks(w.Breaks), Next: w.Next, Since: w.Since}
	if w.Failing {
		c.State = gen.StateFailing
	}
	return c
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
