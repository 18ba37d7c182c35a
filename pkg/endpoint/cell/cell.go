package cell

import (
	"log/slog"
	"path/filepath"

	"github.com/cilium/hive/cell"

	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/endpoint/creator"
	"github.com/weirnet/weir/pkg/endpoint/metadata"
	"github.com/weirnet/weir/pkg/endpoint/regenerator"
	"github.com/weirnet/weir/pkg/endpointmanager"
)

// Cell provides *Endpoints. It needs a Config.
var Cell = cell.Module("endpoint", "Endpoints of this node", cell.Provide(newEndpoints))

// Config is what the endpoint machinery needs of the rest of the agent.
type Config struct {
	Logger   *slog.Logger
	StateDir string // endpoints/ is below it
	BootID   string // of this boot
	Parallel int    // builds at the same time
	Metadata *metadata.Resolver
	Keeper   *endpoint.IdentityKeeper
	// Regenerator is complete but for Logger and Queue.
	Regenerator regenerator.Config
	// Manager is complete but for Logger, Endpoint, Remover and Metadata.
	Manager endpointmanager.Config
}

// Endpoints is the machinery, joined.
type Endpoints struct {
	Manager *endpointmanager.Manager
	Creator *creator.Creator
	Queue   *endpoint.BuildQueue
}

func newEndpoints(lc cell.Lifecycle, cfg Config) *Endpoints {
	queue := endpoint.NewBuildQueue(cfg.Parallel)
	cfg.Regenerator.Logger, cfg.Regenerator.Queue = cfg.Logger, queue
	builds := regenerator.New(cfg.Regenerator)
	m := cfg.Manager
	m.Logger, m.Remover, m.Metadata = cfg.Logger, builds, cfg.Metadata
	m.Endpoint = endpoint.Config{
		Logger: cfg.Logger, StateDir: filepath.Join(cfg.StateDir, "endpoints"), BootID: cfg.BootID, Queue: queue, Identities: cfg.Keeper,
	}
	manager := endpointmanager.New(m)
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) error { builds.Start(); return nil },
		OnStop: func(cell.HookContext) error {
			builds.Close()
			manager.Close()
			queue.Close()
			cfg.Keeper.Close()
			return nil
		},
	})
	return &Endpoints{manager, creator.New(cfg.Logger, manager, cfg.Metadata), queue}
}
