package ipam

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
)

// FileName is the name of the leases inside Config.StateDir.
const FileName = "leases.json"

// formatVersion of the file. A greater one is not read.
const formatVersion = 1

// file is leases.json. IPAM.mu guards it.
type file struct {
	path  string
	extra map[string]json.RawMessage // members that this version does not know
	write func(path string, data []byte) error
}

// replace writes the file; see doc.go for why it does not sync.
func replace(path string, data []byte) error { return atomicfile.Write(path, data, 0o600) }

type leaseRecord struct {
	ID      string     `json:"id"`
	Owner   string     `json:"owner"`
	Pod     string     `json:"pod,omitempty"`
	Pool    string     `json:"pool"`
	IPv4    netip.Addr `json:"ipv4"`
	IPv6    netip.Addr `json:"ipv6"`
	Expires time.Time  `json:"expires,omitzero"`
}

// nextRecord is where the search for free addresses of a pool goes on.
type nextRecord struct {
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
}

// save writes all leases. m.mu is held.
func (m *IPAM) save() error {
	if m.file == nil {
		return nil
	}
	leases := make([]leaseRecord, 0, len(m.leases))
	for _, l := range m.leases {
		leases = append(leases, leaseRecord{l.ID, l.Owner, l.Pod, l.Pool, l.IPv4, l.IPv6, l.Expires})
	}
	slices.SortFunc(leases, func(a, b leaseRecord) int { return strings.Compare(a.Owner, b.Owner) })
	next := map[string]nextRecord{}
	for name, p := range m.pools {
		var n nextRecord
		if p.v4 != nil {
			n.IPv4 = p.v4.Next()
		}
		if p.v6 != nil {
			n.IPv6 = p.v6.Next()
		}
		next[name] = n
	}
	all := maps.Clone(m.file.extra)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	for k, v := range map[string]any{"version": formatVersion, "next": next, "leases": leases} {
		raw, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode %s: %w", m.file.path, err)
		}
		all[k] = raw
	}
	data, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode %s: %w", m.file.path, err)
	}
	if err := m.file.write(m.file.path, data); err != nil {
		return fmt.Errorf("write %s: %w; free space or repair the state directory", m.file.path, err)
	}
	return nil
}

// contents is a decoded file.
type contents struct {
	leases []leaseRecord
	next   map[string]nextRecord
	extra  map[string]json.RawMessage
}

func decode(data []byte) (c contents, err error) {
	if err := json.Unmarshal(data, &c.extra); err != nil {
		return c, err
	}
	version := 0
	for _, member := range []struct {
		name string
		into any
	}{{"version", &version}, {"next", &c.next}, {"leases", &c.leases}} {
		raw, ok := c.extra[member.name]
		if !ok {
			return c, fmt.Errorf("member %q is missing", member.name)
		}
		if err := json.Unmarshal(raw, member.into); err != nil {
			return c, fmt.Errorf("member %q: %w", member.name, err)
		}
		if version < 1 || version > formatVersion {
			return c, fmt.Errorf("version %d is not known; this program reads up to version %d", version, formatVersion)
		}
		delete(c.extra, member.name)
	}
	return c, nil
}

// load reads the file into an empty IPAM.
func (m *IPAM) load() error {
	path := m.file.path
	if err := atomicfile.Dir(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("state directory of leases: %w", err)
	}
	var c contents
	damage := atomicfile.Load(path, func(data []byte) (err error) {
		c, err = decode(data)
		return err
	})
	if damage != nil {
		m.log.Warn("Leases cannot be used; endpoints claim their addresses again", "error", damage)
		return nil
	}
	m.file.extra = c.extra
	for _, r := range c.leases {
		m.adopt(r)
	}
	for name, n := range c.next {
		if p := m.pools[name]; p != nil && p.v4 != nil {
			p.v4.SetNext(n.IPv4)
		}
		if p := m.pools[name]; p != nil && p.v6 != nil {
			p.v6.SetNext(n.IPv6)
		}
	}
	return nil
}

// adopt takes a lease of the file over. One whose address is in no pool any more
// is kept as it is; one that contradicts another is left out.
func (m *IPAM) adopt(r leaseRecord) {
	l := &Lease{ID: r.ID, Owner: r.Owner, Pod: r.Pod, Pool: r.Pool, IPv4: r.IPv4, IPv6: r.IPv6, Expires: r.Expires}
	refuse := func(why string) {
		m.log.Warn("A lease of the file is left out", "file", m.file.path, "owner", r.Owner, "addresses", join(l.Addrs()), "reason", why)
	}
	switch {
	case r.ID == "" || r.Owner == "" || len(l.Addrs()) == 0 || r.IPv4.IsValid() && !r.IPv4.Is4() || r.IPv6.IsValid() && !r.IPv6.Is6():
		refuse("it is incomplete")
		return
	case m.leases[r.ID] != nil || m.byOwner[r.Owner] != nil:
		refuse("the owner has another")
		return
	}
	for _, a := range l.Addrs() {
		if m.byAddr[a] != nil {
			refuse("the address is leased to " + m.byAddr[a].Owner)
			return
		}
	}
	for _, a := range l.Addrs() {
		if p := m.pools[r.Pool]; p == nil || p.of(a.Is6()) == nil || p.of(a.Is6()).TakeAddr(a, r.Owner) != nil {
			m.log.Warn("A lease is outside the configured pools; its owner keeps the address", "owner", r.Owner, "address", a.String(), "pool", r.Pool)
		}
	}
	m.gateways(l)
	m.insert(l)
}
