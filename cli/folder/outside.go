package folder

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/weirnet/weir/pkg/filesource"
	"github.com/weirnet/weir/pkg/policy/simulate"
	"github.com/weirnet/weir/pkg/types"
)

// outside is the form of lab/outside.yaml.
type outside struct {
	Hosts []struct {
		Name      string       `json:"name"`
		Addresses []netip.Addr `json:"addresses"`
		Ports     []struct {
			Port     uint16 `json:"port"`
			Protocol string `json:"protocol"`
		} `json:"ports"`
	} `json:"hosts"`
}

// Outside reads a file of hosts outside; a missing file means none.
func Outside(path string) ([]simulate.SketchedHost, error) {
	text, err := filesource.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var file outside
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var hosts []simulate.SketchedHost
	for _, h := range file.Hosts {
		if h.Name == "" || len(h.Addresses) == 0 {
			return nil, fmt.Errorf("%s: a host needs a name and addresses", path)
		}
		host := simulate.SketchedHost{Host: simulate.Host{Name: h.Name, Addrs: h.Addresses}}
		for _, p := range h.Ports {
			proto, err := types.ParseProto(p.Protocol)
			if err != nil {
				return nil, fmt.Errorf("%s: host %s: %w", path, h.Name, err)
			}
			host.Ports = append(host.Ports, simulate.Port{Proto: proto, Port: p.Port})
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}
