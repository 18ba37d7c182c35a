package cmd

import (
	"net/netip"

	"github.com/weirnet/weir/pkg/api"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/labels"
)

// identities shows the identities in use (pkg/api identitySource).
type identities struct{ *cache.Cache }

// Identities lists them, reserved ones included.
func (i identities) Identities() []*identity.Identity { return i.List() }

// Identity finds one.
func (i identities) Identity(id identity.NumericIdentity) (*identity.Identity, bool) {
	return i.LookupByID(id)
}

// labelsOf returns an identity's labels; nil: it is not known.
func (i identities) labelsOf(id identity.NumericIdentity) labels.LabelArray {
	if known, ok := i.LookupByID(id); ok {
		return known.LabelArray
	}
	return nil
}

// addresses shows the ipcache (pkg/api ipSource).
type addresses struct {
	*ipcache.IPCache
	identities identities
}

// IPs lists all prefixes.
func (a addresses) IPs() []api.IPEntry {
	var out []api.IPEntry
	for _, e := range a.Dump() {
		out = append(out, a.entry(e))
	}
	return out
}

// LookupIP resolves one address; false: no entry covers it.
func (a addresses) LookupIP(addr netip.Addr) (api.IPEntry, bool) {
	e := a.Lookup(addr)
	return a.entry(e), e.Prefix.IsValid()
}

func (a addresses) entry(e ipcache.Entry) api.IPEntry {
	return api.IPEntry{
		Prefix: e.Prefix, Identity: e.Identity, PrefixIdentity: e.PrefixIdentity,
		Labels: a.identities.labelsOf(e.Identity), Source: e.Source.String(),
	}
}
