package cmd

import (
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	bpfsources "github.com/weirnet/weir/bpf"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/bpf"
	"github.com/weirnet/weir/pkg/datapath/loader"
	"github.com/weirnet/weir/pkg/datapath/orchestrator"
	"github.com/weirnet/weir/pkg/datapath/route"
	"github.com/weirnet/weir/pkg/endpoint"
	endpointcell "github.com/weirnet/weir/pkg/endpoint/cell"
	"github.com/weirnet/weir/pkg/endpoint/metadata"
	"github.com/weirnet/weir/pkg/endpoint/regenerator"
	"github.com/weirnet/weir/pkg/endpoint/survey"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/health"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/ipam"
	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/policy/repository"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/upkeep"
	"github.com/weirnet/weir/pkg/workload"
)

const defaultPool = ipam.DefaultPool

// newHive joins the modules. Constructors open and read; what runs is started
// by the hooks and, in order, by agent.start.
func newHive(cfg *Config, log *slog.Logger, fail chan error) *hive.Hive {
	return hive.New(
		cell.Provide(
			func() (*Config, chan error, *health.Registry) { return cfg, fail, health.New() },
			newState, newTables, newSurvey, newSettings, newIdentities, newRepository, newLeases, newKeeper, newSource, newIPCache, newOrchestrator, newEndpointConfig,
		),
		endpointcell.Cell,
		cell.Invoke(newAgent),
	)
}

// state is the agent's lock and its kernel maps: what must be ours first.
type state struct {
	lock *stateLock // of the state directory
	run  io.Closer  // the lock of the run directory
	pins *stateLock // of the root
	root bpf.Root
	maps *kernelMaps
	boot string // see bootID
}

func newState(lc cell.Lifecycle, cfg *Config, log *slog.Logger) (*state, error) {
	if err := bpf.GrowFDTable(); err != nil {
		return nil, err
	}
	if err := bpf.RemoveMemlock(); err != nil {
		return nil, err
	}
	lock, err := lockState(cfg)
	if err != nil {
		return nil, err
	}
	run, err := api.HoldRunDir(cfg.RunDir)
	if err != nil {
		return nil, err
	}
	root, err := bpf.OpenRoot(cfg.BPFRoot)
	if err != nil {
		return nil, err
	}
	pins, err := lockRoot(root.Path)
	if err != nil {
		return nil, err
	}
	if err := recoverPins(root, log); err != nil {
		return nil, err
	}
	maps, err := openMaps(root, cfg)
	if err != nil {
		return nil, err
	}
	lc.Append(cell.Hook{OnStop: func(cell.HookContext) error { return maps.Close() }})
	return &state{lock, run, pins, root, maps, bootID(log)}, nil
}

func newTables() (*workload.Tables, error) { return workload.NewTables(statedb.New()) }

// newIdentities reads the checkpoint and holds every number that the kernel has.
func newIdentities(cfg *Config, s *state, found *survey.Survey, log *slog.Logger) (*cache.Cache, error) {
	return cache.New(cache.Config{
		Logger: log, Dir: cfg.DataDir, Former: filepath.Join(cfg.StateDir, "local_allocator_state.json"),
		Busy: s.maps.identities(log), Known: found.Identities(),
	})
}

func newRepository(cfg *Config, s *state, log *slog.Logger) (*repository.Repository, error) {
	mode, err := policytypes.ParseMode(cfg.Enforcement)
	if err != nil {
		return nil, err
	}
	return repository.New(repository.Config{Logger: log, StateDir: cfg.StateDir, Mode: mode, Greatest: func() policytypes.RuleID { return s.maps.greatestRule(log) }})
}

func newLeases(cfg *Config, s *state, tables *workload.Tables, log *slog.Logger) (*leases, error) {
	l := &leases{tables: tables, user: func(netip.Addr) uint16 { return 0 }, own: func() []netip.Addr { return nil }}
	m, err := ipam.New(ipam.Config{
		Logger: log, StateDir: cfg.StateDir, BootID: s.boot, Expiration: cfg.LeaseExpiry, Foreign: l.foreign,
		Pools: map[string]ipam.PoolConfig{defaultPool: {V4: cfg.pool.v4, V6: cfg.pool.v6, Gateway4: cfg.pool.gw4, Gateway6: cfg.pool.gw6}},
	})
	if err != nil {
		return nil, err
	}
	l.IPAM = m
	return l, nil
}

// late reaches the endpoint manager from what it is made of.
type late struct{ manager *endpointmanager.Manager }

func newIPCache(cfg *Config, s *state, ids *cache.Cache, repo *repository.Repository, log *slog.Logger) (*ipcache.IPCache, *late) {
	l := &late{}
	c := ipcache.Config{
		Logger: log, Identities: ids, Kernel: s.maps.IPCache, Policy: identityUpdates{repo, l},
		OnAddress: l.addressChanged,
	}
	if cfg.pool.v4.IsValid() {
		c.PodPrefixes = append(c.PodPrefixes, cfg.pool.v4)
	}
	if cfg.pool.v6.IsValid() {
		c.PodPrefixes = append(c.PodPrefixes, cfg.pool.v6)
	}
	return ipcache.New(c), l
}

func newOrchestrator(lc cell.Lifecycle, cfg *Config, s *state, keeper *upkeep.Keeper, log *slog.Logger) (*orchestrator.Orchestrator, error) {
	l, err := loader.New(loader.Config{
		StateDir: cfg.StateDir, Root: s.root, Clang: cfg.Clang, Sources: bpfsources.Sources, Objects: bpfsources.Objects, Maps: s.maps.Named(), Logger: log,
	})
	if err != nil {
		return nil, err
	}
	lc.Append(cell.Hook{OnStop: func(cell.HookContext) error { return l.Close() }})
	return orchestrator.New(orchestrator.Config{
		Loader: l, Logger: log, Shape: loader.Shape{IPv4: cfg.pool.v4.IsValid(), IPv6: cfg.pool.v6.IsValid()}, SetUpNode: keeper.SetUp,
	}), nil
}

// newEndpointConfig gives the endpoint machinery its surroundings.
func newEndpointConfig(cfg *Config, s *state, tables *workload.Tables, ids *cache.Cache, repo *repository.Repository, source *filesource.Source, ips *ipcache.IPCache, o *orchestrator.Orchestrator, book *endpoint.SettingsBook, log *slog.Logger) endpointcell.Config {
	links := regenerator.Links{Routes: route.Table(cfg.RouteTable), IPv4: cfg.pool.v4.IsValid(), IPv6: cfg.pool.v6.IsValid()}
	return endpointcell.Config{
		Logger: log, StateDir: cfg.StateDir, BootID: s.boot, Settings: book, Parallel: cfg.Parallel,
		Metadata: metadata.New(log, tables, cfg.identity, cfg.ClusterName).InNamespace(cfg.PodNamespace).Admit(admission(source)),
		Keeper:   endpoint.NewIdentityKeeper(log, ids, repo),
		Regenerator: regenerator.Config{
			Policy: resolver{repo, source}, Slots: s.maps.Slots, Words: s.maps.Config, Endpoints: s.maps.LXC,
			Datapath: regenerator.Datapath{Orchestrator: o}, Addresses: ips, Connector: links,
			Conntrack: regenerator.Conntrack{IPv4: s.maps.CT4, IPv6: s.maps.CT6},
		},
		Manager: endpointmanager.Config{Links: links, Words: s.maps.Config},
	}
}
