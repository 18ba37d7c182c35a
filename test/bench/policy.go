package main

import (
	"context"
	"errors"
)

// measurePolicy reports how policy grows: what a bigger cluster, a bigger change
// and more endpoints cost, as ratios to a small one of the same run.
func measurePolicy(ctx context.Context, o options, r *report) error {
	return errors.Join(measureGrowth(ctx, r), measureDelta(r), measureTrie(ctx, o, r))
}
