package regenerator

import (
	"github.com/weirnet/weir/pkg/endpoint"
	"github.com/weirnet/weir/pkg/identity/cache"
	"github.com/weirnet/weir/pkg/ipcache"
	"github.com/weirnet/weir/pkg/maps/lxcmap"
	"github.com/weirnet/weir/pkg/maps/policymap"
	"github.com/weirnet/weir/pkg/policy/repository"
)

// What the regenerator needs is what the others offer.
var (
	_ policySlots = (*policymap.Slots)(nil)
	_ policyWords = (*lxcmap.Config)(nil)
	_ endpointMap = (*lxcmap.Map)(nil)
	_ addressBook = (*ipcache.IPCache)(nil)
	_ datapath    = Datapath{}
	_ connector   = Links{}
	_ conntrack   = Conntrack{}
	_             = endpoint.NewIdentityKeeper(nil, (*cache.Cache)(nil), (*repository.Repository)(nil))
)
