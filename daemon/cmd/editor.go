package cmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/weirnet/weir/api/v1"
	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/endpointmanager"
	"github.com/weirnet/weir/pkg/filesource"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// editor changes policies through the file source, which keeps them.
type editor struct {
	source  *filesource.Source
	manager *endpointmanager.Manager
}

// Apply puts a document's policies in force, all or none (pkg/api policyEditor).
func (e editor) Apply(ctx context.Context, file string, document []byte) (api.PolicyChange, error) {
	policies, revision, problems, err := e.source.Put(document, file)
	if len(problems) > 0 {
		errs := make([]error, len(problems))
		for i, p := range problems {
			errs[i] = errors.New(p.String())
		}
		return api.PolicyChange{}, v1.NewError(v1.CodeInvalid, errors.Join(errs...), "nothing was applied; correct the document and send it again")
	}
	if err != nil {
		return api.PolicyChange{}, editError(err)
	}
	return api.PolicyChange{Revision: revision, Resources: resources(policies)}, e.inForce(ctx, revision)
}

// Delete takes a policy out of force.
func (e editor) Delete(ctx context.Context, kind, namespace, name string) (api.PolicyChange, error) {
	r, revision, err := e.source.Delete(kind, namespace, name)
	if err != nil {
		return api.PolicyChange{}, editError(err)
	}
	return api.PolicyChange{Revision: revision, Resources: []policytypes.Resource{r}}, e.inForce(ctx, revision)
}

// Validate reads a document and changes nothing.
func (e editor) Validate(_ context.Context, file string, document []byte) api.Validation {
	policies, problems := e.source.Check(document, file)
	v := api.Validation{Resources: resources(policies)}
	for _, p := range problems {
		v.Problems = append(v.Problems, api.Problem{File: p.File, Line: p.Line, Field: p.Field, Text: p.Text, Warning: p.Warning})
	}
	return v
}

// inForce waits until the endpoints answer for a revision, 10 seconds at most.
func (e editor) inForce(ctx context.Context, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := e.manager.WaitForPolicyRevision(ctx, revision); err != nil {
		return v1.NewError(v1.CodeTimeout, fmt.Errorf("the change is kept, but not in force everywhere yet: %w", err), "weir endpoint list")
	}
	return nil
}

func editError(err error) error {
	switch {
	case errors.Is(err, filesource.ErrNotFound):
		return v1.NewError(v1.CodeNotFound, err, "")
	case errors.Is(err, filesource.ErrForeign):
		return v1.NewError(v1.CodeConflict, err, "")
	}
	return err
}

// resources lists each object once; one object may hold several policies.
func resources(policies []*policytypes.Policy) []policytypes.Resource {
	var out []policytypes.Resource
	for _, p := range policies {
		if len(out) == 0 || out[len(out)-1] != p.Resource {
			out = append(out, p.Resource)
		}
	}
	return out
}
