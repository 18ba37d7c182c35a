package endpoint

import (
	"context"
	"fmt"

	policytypes "github.com/weirnet/weir/pkg/policy/types"
)

// Redirector makes and removes the proxy listeners of an endpoint.
// Listeners exist before an entry points at them and go after it is gone.
type Redirector interface {
	// Prepare makes the listeners that the entries ask for. On an error it has
	// left none behind. Undo takes away what Prepare made; finish takes away the
	// listeners that are no longer used, after the entries are in the kernel.
	Prepare(ctx context.Context, id uint16, entries map[policytypes.Key]policytypes.Entry) (undo, finish func(), err error)
}

// CountRedirects returns how many entries send their traffic through a proxy.
func CountRedirects(entries map[policytypes.Key]policytypes.Entry) int {
	n := 0
	for _, e := range entries {
		if e.ProxyPort != 0 {
			n++
		}
	}
	return n
}

// PrepareRedirects is the station redirect. Without a redirector an entry that
// asks for a proxy is refused, so that it never falls open.
func (e *Endpoint) PrepareRedirects(ctx context.Context, r Redirector, entries map[policytypes.Key]policytypes.Entry) (undo, finish func(), err error) {
	if r == nil {
		if n := CountRedirects(entries); n > 0 {
			return nil, nil, fmt.Errorf("policy asks for %d proxy redirects and no proxy is configured; remove the layer-7 rules", n)
		}
		return func() {}, func() {}, nil
	}
	return r.Prepare(ctx, e.ID, entries)
}
