package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/hive/cell"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/loader"
	"github.com/weirnet/weir/pkg/datapath/orchestrator"
	"github.com/weirnet/weir/pkg/endpoint"
	endpointapi "github.com/weirnet/weir/pkg/endpoint/api"
	endpointcell "github.com/weirnet/weir/pkg/endpoint/cell"
	"github.com/weirnet/weir/pkg/endpoint/metadata"
	"github.com/weirnet/weir/pkg/endpoint/survey"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/node"
	"github.com/weirnet/weir/pkg/policy/repository"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/upkeep"
	"github.com/weirnet/weir/pkg/version"
	"github.com/weirnet/weir/pkg/workload"
)

// Times of the agent's loops.
const (
	flowSweep     = 30 * time.Second // expired connections
	restoreWait   = 30 * time.Second // for restored endpoints, before readiness is told without them
	programsSweep = time.Minute      // program arrays of former agents
	takeOverWait  = time.Second      // maps of former sizes
)

// agent holds the modules that start and stop in an order of its own.
type agent struct {
	cfg        *Config
	log        *slog.Logger
	root       bpf.Root
	maps       *kernelMaps
	repo       *repository.Repository
	identities *cache.Cache
	source     *filesource.Source
	ipcache    *ipcache.IPCache
	endpoints  *endpointcell.Endpoints
	datapath   *orchestrator.Orchestrator
	leases     *leases
	node       *node.Node
	api        *endpoints
	events     *events
	status     *agentStatus
	warnings   *health.Registry
	keeper     *upkeep.Keeper
	server     *api.Server
	queue      *api.DeleteQueue
	conflist   api.Conflist
	found      *survey.Survey
	metadata   *metadata.Resolver
	restored   []*endpoint.Endpoint // of the last agent

	stop  context.CancelFunc
	loops sync.WaitGroup
	fail  chan error // the first loop that ended with an error
}

// modules is what the hive gives to newAgent.
type modules struct {
	cell.In

	Lifecycle  cell.Lifecycle
	Config     *Config
	Log        *slog.Logger
	State      *state
	Tables     *workload.Tables
	Identities *cache.Cache
	Repository *repository.Repository
	Leases     *leases
	Source     *filesource.Source
	IPCache    *ipcache.IPCache
	Late       *late
	Datapath   *orchestrator.Orchestrator
	Endpoints  *endpointcell.Endpoints
	Fail       chan error
	Warnings   *health.Registry
	Keeper     *upkeep.Keeper
	Found      *survey.Survey
	Cell       endpointcell.Config
}

func newAgent(m modules) error {
	cfg := m.Config
	a := &agent{
		cfg: cfg, log: m.Log, root: m.State.root, maps: m.State.maps, repo: m.Repository, identities: m.Identities, source: m.Source,
		ipcache: m.IPCache, endpoints: m.Endpoints, datapath: m.Datapath, leases: m.Leases, fail: m.Fail, warnings: m.Warnings, keeper: m.Keeper, found: m.Found, metadata: m.Cell.Metadata,
		queue:    api.NewDeleteQueue(cfg.RunDir, m.Log),
		conflist: api.Conflist{Dir: cfg.CNIConfDir, Socket: cfg.SocketPath, RunDir: cfg.RunDir, MTU: cfg.MTU, Wait: cfg.CNIWait},
	}
	manager := m.Endpoints.Manager
	m.Late.manager = manager
	mode, err := policytypes.ParseMode(cfg.Enforcement)
	if err != nil {
		return err
	}
	a.status = &agentStatus{agent: a, started: time.Now(), conditions: newConditions(a, mode)}
	m.Leases.user = func(addr netip.Addr) uint16 {
		if e := manager.ByAddr(addr); e != nil {
			return e.ID
		}
		return 0
	}
	a.api = &endpoints{manager: manager, creator: m.Endpoints.Creator, leases: m.Leases, words: m.State.maps.Config,
		counted: &counters{rule: m.Repository.Rule, maps: m.State.maps, ended: map[counterKey]volume{}, at: func(addr netip.Addr) (uint16, bool) {
			e := manager.ByAddr(addr)
			if e == nil {
				return 0, false
			}
			return e.ID, true
		}}}
	a.events = newEvents(a.maps, m.Log)
	a.events.manager, a.events.labels, a.events.rule = manager, identities{m.Identities}.labelsOf, m.Repository.Rule
	a.node, err = node.New(node.Config{Logger: m.Log, Name: cfg.NodeName, Cluster: cfg.ClusterName, Filter: cfg.identity, Tables: m.Tables, Book: m.IPCache})
	if err != nil {
		return err
	}
	m.Leases.own = a.node.Addresses
	manager.Observe(a.forget)
	manager.Observe(programWarnings(m.Warnings))
	m.Repository.Observe(manager)
	a.server = api.NewServer(api.Config{
		Path: cfg.SocketPath, Group: cfg.SocketGroup, Logger: m.Log, Software: version.String(), Handlers: a.handlers(), Starting: true,
	})
	m.Lifecycle.Append(cell.Hook{OnStart: a.start, OnStop: a.halt})
	return nil
}

type endpointHandlers = endpointapi.Handlers

// handlers joins both sets of operations.
func (a *agent) handlers() struct {
	*api.Handlers
	*endpointHandlers
} {
	ids := identities{a.identities}
	manager := a.endpoints.Manager
	return struct {
		*api.Handlers
		*endpointHandlers
	}{
		api.NewHandlers(api.Sources{
			Status: a.status, Identities: ids, Policies: &policies{Repository: a.repo, manager: manager, ipcache: a.ipcache}, Editor: editor{a.source, manager}, Keeper: sources{a.source}, IPs: addresses{a.ipcache, ids},
			IPAM: a.leases, Explainer: explainer{a.repo, manager, a.ipcache}, Events: a.events,
		}, version.String()),
		endpointapi.NewHandlers(a.api, a.api, a.api),
	}
}

// forget tells the others of an endpoint that went, also one that a sweep took.
func (a *agent) forget(e endpointmanager.Event) {
	if e.Kind != endpointmanager.EventDeleted {
		return
	}
	a.loops.Go(func() { // the caller owns the endpoint and must not wait
		a.repo.UpdatePods(nil, goneAddrs(a.endpoints.Manager, e.New))
		a.api.counted.forget(e.New.ID)
		if err := a.api.releaseUnused(e.New.Attachment()); err != nil {
			a.log.Warn("Lease of a deleted endpoint not released", "endpoint", e.New.ID, "error", err)
		}
	})
}

// start brings the agent up. The order is firm: policies before endpoints, all
// restored endpoints before requests, requests before the CNI configuration.
func (a *agent) start(ctx cell.HookContext) error {
	run, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.loop(run, "events", a.events.source.Run)
	for _, name := range a.maps.postponed(a.cfg) {
		a.warnings.Set(health.Warning{Code: "map-size", Subject: name, Text: name + " is not the size of its map yet, because an earlier change of it was not finished when the last agent ended", Next: "restart the agent, which costs no connection"})
	}
	a.tellAside()
	a.tellReplaced()
	// Reads are answered from here on: whoever waits for the agent sees what it is at.
	if err := a.server.Listen(); err != nil {
		return err
	}
	a.loop(run, "API", a.server.Serve)
	if err := a.bringUp(ctx, run); err != nil {
		stop()
		a.loops.Wait()
		return err
	}
	return nil
}

// bringUp is start with the API that answers reads.
func (a *agent) bringUp(ctx, run context.Context) error {
	a.status.step("reading policies and pods")
	if err := a.source.Scan(); err != nil {
		return fmt.Errorf("reading policies and pods: %w", err)
	}
	a.repo.ObservePrefixChanges(a.ipcache.ChangePolicyPrefixes)
	if err := a.node.Start(ctx); err != nil {
		return err
	}
	if err := a.ipcache.Start(ctx); err != nil {
		return err
	}
	a.status.step("loading the data plane")
	if err := a.startDatapath(ctx, run); err != nil {
		return err
	}
	a.status.step("restoring endpoints")
	if err := a.restore(ctx); err != nil {
		return err
	}
	if _, err := a.queue.Drain(ctx, a.replay, a.server.Open); err != nil {
		return fmt.Errorf("replaying deletions: %w", err)
	}
	a.loop(run, "source", a.source.Run)
	a.loop(run, "leases", a.leases.Run)
	a.loop(run, "sweeps", func(ctx context.Context) error { a.endpoints.Manager.RunSweeps(ctx, 0); return nil })
	a.loop(run, "connections", a.every(flowSweep, func(context.Context) error { return a.api.counted.sweep() }))
	a.loop(run, "policy maps", a.every(a.cfg.PolicyCheck, a.mendMaps))
	a.loop(run, "node", func(ctx context.Context) error { return a.keeper.Run(ctx, a.cfg.NodeCheck) })
	a.loop(run, "readiness", a.becomeReady)
	a.loop(run, "conditions", a.status.conditions.run)
	return nil
}

// replay carries out a deletion that came while no agent ran.
func (a *agent) replay(ctx context.Context, d v1.QueuedDelete) error {
	_, problems := a.api.DeleteContainer(ctx, d.ContainerID, d.Interface, endpointapi.Only{Before: d.Queued})
	err := errors.Join(problems...)
	api.NewTrail(a.log).Tell(api.Change{Who: api.ByDeleteQueue, Action: "endpoint delete", What: "container " + d.ContainerID + " " + d.Interface, Err: err})
	return err
}

// becomeReady waits for the restored endpoints, lets go what only they kept,
// and lets the container runtime in.
func (a *agent) becomeReady(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, restoreWait)
	err := errors.Join(a.ipcache.WaitSynced(wait), a.endpoints.Manager.WaitRestored(wait, a.restored), a.endpoints.Manager.WaitForPolicyRevision(wait, a.repo.Revision()))
	cancel()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		a.log.Warn("Restored endpoints are not all up to date; going on", "error", err)
	}
	a.restored = nil
	a.ipcache.Prune()
	a.identities.ReleaseRestored()
	if a.cfg.CNIConfDir != "" {
		if err := a.keeper.Add(ctx, conflistStep(a.conflist)); err != nil {
			return fmt.Errorf("writing the CNI configuration: %w", err)
		}
	}
	a.status.becomeReady()
	a.log.Info("Ready", "took", time.Since(a.status.started).Round(time.Millisecond))
	a.takeOver(ctx)
	return a.every(programsSweep, func(ctx context.Context) error {
		_, err := a.datapath.Sweep(ctx)
		return err
	})(ctx)
}

// takeOver returns when no former map of another size is in use any more. Until all
// endpoints have been built anew their former programs go by it.
func (a *agent) takeOver(ctx context.Context) {
	for wait := takeOverWait; ctx.Err() == nil; wait = min(2*wait, programsSweep) {
		done, err := a.maps.TakeOver(ctx, loader.Unused)
		if done {
			return
		}
		if err == nil {
			_, err = a.datapath.Sweep(ctx)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("Maps of a former size are still in use", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// mendMaps undoes what others did to the policy maps and the ipcache.
func (a *agent) mendMaps(context.Context) error {
	a.ipcache.Check()
	mended, err := a.maps.Slots.Repair()
	if mended > 0 {
		a.log.Warn("Policy maps were changed from outside the agent and are mended", "lines", mended)
	}
	return err
}

// loop runs fn until the agent stops; its error ends the agent.
func (a *agent) loop(ctx context.Context, name string, fn func(context.Context) error) {
	a.loops.Go(func() {
		if err := fn(ctx); err != nil && ctx.Err() == nil {
			select {
			case a.fail <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	})
}

// every calls fn again and again; a failure is logged and tried again.
func (a *agent) every(d time.Duration, fn func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
				if err := fn(ctx); err != nil && ctx.Err() == nil {
					a.log.Warn("A periodic task failed; it is tried again", "error", err)
				}
			}
		}
	}
}

// halt stops the loops. Programs, maps and records stay: traffic goes on.
func (a *agent) halt(cell.HookContext) error {
	if a.stop == nil {
		return nil
	}
	a.stop()
	a.loops.Wait()
	a.ipcache.Stop()
	a.node.Stop()
	return nil
}
