package creator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirnet/weir/pkg/endpoint"
)

// registry is endpointmanager.
type registry interface {
	Create(ctx context.Context, row endpoint.Row) (e *endpoint.Endpoint, created bool, err error)
	Delete(ctx context.Context, e *endpoint.Endpoint, reason string) error
}

// labeller is endpoint/metadata.
type labeller interface {
	Attach(ctx context.Context, e *endpoint.Endpoint) error
	// PodNamespace is the namespace of a pod of which the runtime says this one, or
	// none, and these labels.
	PodNamespace(given string, labels map[string]string) string
}

// cleanupTimeout bounds how long a failed creation cleans up after itself.
const cleanupTimeout = 30 * time.Second

// Creator makes endpoints. It has no state of its own.
type Creator struct {
	log      *slog.Logger
	registry registry
	metadata labeller
}

// New returns a Creator.
func New(log *slog.Logger, r registry, m labeller) *Creator {
	return &Creator{log: log, registry: r, metadata: m}
}

// Create makes the endpoint of a request, or returns the one that the same
// request made before, with created false. With Wait it returns when the
// endpoint is ready. Errors: InvalidError; endpointmanager.DuplicateError; the
// context's, with the last station passed and the one waited for; or
// endpoint.ErrNotAlive, if a deletion came between. After an error nothing of
// a new endpoint is left; one that existed before is not touched.
func (c *Creator) Create(ctx context.Context, req Request) (e *endpoint.Endpoint, created bool, err error) {
	if err := req.Validate(); err != nil {
		return nil, false, err
	}
	row := req.row()
	row.Pod.Namespace = c.metadata.PodNamespace(req.PodNamespace, req.Labels)
	e, created, err = c.registry.Create(ctx, row)
	if err != nil {
		return nil, false, err
	}
	if created {
		err = c.metadata.Attach(ctx, e)
	}
	if err == nil && req.Wait {
		err = e.WaitReady(ctx)
	}
	if err == nil {
		return e, created, nil
	}
	if !created {
		return nil, false, err
	}
	return nil, false, c.undo(ctx, e, err)
}

// undo takes a half-made endpoint down, also when the request's time is over.
func (c *Creator) undo(ctx context.Context, e *endpoint.Endpoint, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	c.log.Warn("Endpoint not created; taking back what was done", endpoint.LogEndpointID, e.ID, endpoint.LogError, cause)
	if err := c.registry.Delete(ctx, e, "its creation failed: "+cause.Error()); err != nil {
		return errors.Join(cause, fmt.Errorf("cleaning up: %w", err))
	}
	return cause
}
