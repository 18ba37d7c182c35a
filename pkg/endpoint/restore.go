package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirnet/weir/pkg/atomicfile"
	"github.com/weirnet/weir/pkg/endpoint/id"
	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/labels"
	policytypes "github.com/weirnet/weir/pkg/policy/types"
	"github.com/weirnet/weir/pkg/types"
)

// RecordVersion is written into every record. One of a newer version is read as far
// as it is known; fields may be added without a new version.
const RecordVersion = 1

const (
	recordName = "endpoint.json"
	recordTemp = recordName + atomicfile.TempSuffix
)

// Record is what of an endpoint outlives the agent: <state>/endpoints/<id>/endpoint.json.
// Fields that this agent does not know are kept when it writes the record again.
type Record struct {
	Version            int               `json:"version"`
	ID                 uint16            `json:"id"`
	BootID             string            `json:"boot-id,omitempty"` // of the kernel that has the link
	Deleting           bool              `json:"deleting,omitempty"`
	ContainerID        string            `json:"container-id,omitempty"`
	ContainerInterface string            `json:"container-interface,omitempty"`
	Network            string            `json:"network,omitempty"`
	NetNS              string            `json:"netns,omitempty"`
	HostInterface      string            `json:"host-interface,omitempty"`
	IfIndex            int               `json:"host-ifindex,omitempty"`
	PeerIndex          int               `json:"peer-ifindex,omitempty"`
	MAC                types.MAC         `json:"mac"`
	NodeMAC            types.MAC         `json:"node-mac"`
	IPv4               netip.Addr        `json:"ipv4"`
	IPv6               netip.Addr        `json:"ipv6"`
	Pool               string            `json:"pool,omitempty"`
	PodNamespace       string            `json:"pod-namespace,omitempty"`
	PodName            string            `json:"pod-name,omitempty"`
	PodUID             string            `json:"pod-uid,omitempty"`
	RequestLabels      map[string]string `json:"request-labels,omitempty"`
	Standalone         bool              `json:"standalone,omitempty"`
	PodSeen            bool              `json:"pod-seen,omitempty"`
	Labels             []string          `json:"labels,omitempty"`
	InfoLabels         []string          `json:"information-labels,omitempty"`
	Identity           uint32            `json:"identity,omitempty"`
	NamedPorts         []NamedPortRecord `json:"named-ports,omitempty"`
	Created            time.Time         `json:"created"`
	Audit              bool              `json:"audit,omitempty"`
	// Enforcement is "default", "always" or "never"; without it the node's mode holds.
	Enforcement policytypes.Enforcement `json:"enforcement,omitempty"`

	labels, infoLabels labels.LabelArray
	extra              recordExtra
	made               bool // from the kernel, and on no disk
}

// MadeRecord is a record of an endpoint that has none, from what else is known of it.
func MadeRecord(rec Record) Record {
	rec.Version, rec.made = RecordVersion, true
	return rec
}

// Made reports whether the record was made from the kernel.
func (rec *Record) Made() bool { return rec.made }

// LabelArray is the identity-relevant labels; nil: they are not known.
func (rec *Record) LabelArray() labels.LabelArray { return rec.labels }

// SetLabels sets the identity-relevant labels.
func (rec *Record) SetLabels(a labels.LabelArray) { rec.labels, rec.Labels = a, a.Strings() }

// NamedPortRecord is one named port in a record.
type NamedPortRecord struct {
	Name     string      `json:"name"`
	Protocol types.Proto `json:"protocol"`
	Port     uint16      `json:"port"`
}

// recordExtra holds the fields of a record that this agent does not know.
type recordExtra map[string]json.RawMessage

// BadRecord is a record that could not be used and was set aside.
type BadRecord = atomicfile.Damage

func recordOf(r *Row, extra recordExtra) Record {
	rec := Record{
		Version: RecordVersion, ID: r.ID, BootID: r.BootID, Deleting: !r.State.Alive(),
		ContainerID: r.ContainerID, ContainerInterface: r.ContainerInterface, Network: r.Network, NetNS: r.NetNS,
		HostInterface: r.HostInterface, IfIndex: r.IfIndex, PeerIndex: r.PeerIndex, MAC: r.MAC, NodeMAC: r.NodeMAC,
		IPv4: r.IPv4, IPv6: r.IPv6, Pool: r.Pool,
		PodNamespace: r.Pod.Namespace, PodName: r.Pod.Name, PodUID: r.Pod.UID, RequestLabels: r.RequestLabels, Standalone: r.Standalone, PodSeen: r.PodSeen,
		Labels: r.Labels.Strings(), InfoLabels: r.InfoLabels.Strings(),
		Identity: uint32(r.Identity), Created: r.Created, Audit: r.Audit, Enforcement: r.Enforcement, extra: extra,
	}
	for name, port := range r.NamedPorts {
		rec.NamedPorts = append(rec.NamedPorts, NamedPortRecord{name.Name, name.Proto, port})
	}
	slices.SortFunc(rec.NamedPorts, func(a, b NamedPortRecord) int {
		return strings.Compare(a.Name+" "+a.Protocol.String(), b.Name+" "+b.Protocol.String())
	})
	return rec
}

// Addrs lists the addresses that are set, IPv4 first.
func (rec *Record) Addrs() []netip.Addr { return rec.Link().Addrs() }

// Link is what the CNI plugin made for the recorded endpoint.
func (rec *Record) Link() Link {
	return Link{
		ContainerID: rec.ContainerID, ContainerInterface: rec.ContainerInterface, Network: rec.Network, NetNS: rec.NetNS,
		HostInterface: rec.HostInterface, IfIndex: rec.IfIndex, PeerIndex: rec.PeerIndex, MAC: rec.MAC, NodeMAC: rec.NodeMAC,
		IPv4: rec.IPv4, IPv6: rec.IPv6, Pool: rec.Pool,
	}
}

// Pod names the pod of the recorded endpoint.
func (rec *Record) Pod() Pod {
	return Pod{Namespace: rec.PodNamespace, Name: rec.PodName, UID: rec.PodUID}
}

func (rec *Record) row() Row {
	r := Row{
		ID: rec.ID, BootID: rec.BootID, Created: rec.Created, Link: rec.Link(), Pod: rec.Pod(), RequestLabels: rec.RequestLabels, Standalone: rec.Standalone, PodSeen: rec.PodSeen,
		Labels: rec.labels, InfoLabels: rec.infoLabels, Settings: Settings{rec.Audit, rec.Enforcement}, Identity: identity.NumericIdentity(rec.Identity),
	}
	for _, p := range rec.NamedPorts {
		if r.NamedPorts == nil {
			r.NamedPorts = policytypes.NamedPorts{}
		}
		r.NamedPorts[policytypes.NamedPort{Name: p.Name, Proto: p.Protocol}] = p.Port
	}
	return r
}

// recordDiffers reports whether the change from old to new belongs into the record.
func recordDiffers(old, new *Row) bool {
	if old == new || new.State == regeneration.StateDisconnected {
		return false
	}
	return old.Link != new.Link || old.Settings != new.Settings || old.Pod != new.Pod || old.PodSeen != new.PodSeen || old.Identity != new.Identity ||
		old.State.Alive() != new.State.Alive() || !old.Labels.Equal(new.Labels) ||
		!old.InfoLabels.Equal(new.InfoLabels) || !maps.Equal(old.NamedPorts, new.NamedPorts)
}

// writeRecord replaces the endpoint's record: a reader sees the old or the new
// one. It is not forced to the disk: a power cut takes the endpoint away as well.
func writeRecord(stateDir string, rec Record) error {
	b, err := marshalRecord(rec)
	if err != nil {
		return fmt.Errorf("writing the record of endpoint %d: %w", rec.ID, err)
	}
	dir := recordDir(stateDir, rec.ID)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("writing the record of endpoint %d: %w; check the state directory", rec.ID, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, recordName), b, 0o640); err != nil {
		return fmt.Errorf("writing the record of endpoint %d: %w; check the state directory", rec.ID, err)
	}
	return nil
}

// marshalRecord writes the known fields over the unknown ones.
func marshalRecord(rec Record) ([]byte, error) {
	b, err := json.Marshal(rec)
	if err != nil || len(rec.extra) == 0 {
		return b, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for k, v := range rec.extra {
		if _, known := all[k]; !known {
			all[k] = v
		}
	}
	return json.Marshal(all)
}

// recordFields are the names of all known fields.
var recordFields = func() map[string]bool {
	known := map[string]bool{}
	for _, f := range []string{
		"version", "id", "deleting", "container-id", "container-interface", "network", "netns", "host-interface",
		"host-ifindex", "peer-ifindex", "boot-id", "mac", "node-mac", "ipv4", "ipv6", "pool", "pod-namespace", "pod-name", "pod-uid",
		"request-labels", "standalone", "pod-seen", "labels", "information-labels", "identity", "named-ports", "created", "audit", "enforcement",
	} {
		known[f] = true
	}
	return known
}()

func parseRecord(b []byte, number uint16) (Record, error) {
	var rec Record
	if err := json.Unmarshal(b, &rec); err != nil {
		return rec, err
	}
	switch {
	case rec.Version < 1:
		return rec, errors.New("it has no version")
	case rec.ID != number:
		return rec, fmt.Errorf("it is of endpoint %d", rec.ID)
	}
	var err error
	if rec.labels, err = labels.ParseArray(rec.Labels...); err != nil {
		return rec, err
	}
	if rec.infoLabels, err = labels.ParseArray(rec.InfoLabels...); err != nil {
		return rec, err
	}
	all := recordExtra{}
	if err := json.Unmarshal(b, &all); err != nil {
		return rec, err
	}
	maps.DeleteFunc(all, func(k string, _ json.RawMessage) bool { return recordFields[k] })
	rec.extra = all
	return rec, nil
}

// ReadAll reads every record under the endpoints' state directory, by number. What an
// interrupted write left behind is removed, as is a record of another boot: no link
// of it is left. A record that cannot be used is set aside, beside its place, and
// returned in bad: nothing is lost. A missing directory means no endpoints.
func ReadAll(stateDir, bootID string) (recs []Record, bad []*BadRecord, err error) {
	if err := atomicfile.Dir(stateDir, 0o750); err != nil {
		return nil, nil, fmt.Errorf("reading the records of endpoints: %w", err)
	}
	dirs, err := os.ReadDir(stateDir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the records of endpoints: %w", err)
	}
	for _, d := range dirs {
		number, err := id.ParseNumber(d.Name())
		if err != nil {
			continue // not ours
		}
		dir := filepath.Join(stateDir, d.Name())
		if err := atomicfile.Dir(dir, 0o750); err != nil { // a file in its place
			return nil, nil, fmt.Errorf("reading the record of endpoint %d: %w", number, err)
		}
		os.Remove(filepath.Join(dir, recordTemp))
		var rec Record
		damage := atomicfile.Load(filepath.Join(dir, recordName), func(b []byte) (err error) {
			rec, err = parseRecord(b, number)
			return err
		})
		switch {
		case damage != nil:
			bad = append(bad, damage)
		case rec.Version == 0:
			os.Remove(dir) // created, but killed before the first record; kept if it holds anything else
		case rec.BootID != "" && rec.BootID != bootID:
			if err := removeRecord(stateDir, number); err != nil {
				return nil, nil, err
			}
		default:
			recs = append(recs, rec)
		}
	}
	slices.SortFunc(recs, func(a, b Record) int { return int(a.ID) - int(b.ID) })
	return recs, bad, nil
}

func recordDir(stateDir string, number uint16) string {
	return filepath.Join(stateDir, strconv.Itoa(int(number)))
}

// removeRecord removes the record and its directory. Records that were moved
// aside stay.
func removeRecord(stateDir string, number uint16) error {
	dir := recordDir(stateDir, number)
	for _, name := range []string{recordName, recordTemp} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the record of endpoint %d: %w", number, err)
		}
	}
	os.Remove(dir) // fails while something was moved aside in it
	return nil
}
