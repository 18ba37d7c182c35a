package cmd

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/weirnet/weir/pkg/datapath/link"
)

type result = types100.Result

// podInterface is the pod's end's place in a result's list of interfaces.
const podInterface = 1

// newResult describes an attachment: the end on the node, then the pod's.
func newResult(sandbox string, v veth, addrs []netip.Addr) *result {
	res := &result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: v.hostName, Mac: v.hostMAC.String(), Mtu: v.mtu},
			{Name: v.podName, Mac: v.podMAC.String(), Mtu: v.mtu, Sandbox: sandbox},
		},
	}
	for _, a := range addrs {
		at := podInterface
		gw, any := link.Gateway4(), net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		if a.Is6() {
			gw, any = link.Gateway6(), net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		res.IPs = append(res.IPs, &types100.IPConfig{Interface: &at, Address: hostPrefix(a), Gateway: gw.AsSlice()})
		res.Routes = append(res.Routes, &types.Route{Dst: any, GW: gw.AsSlice()})
	}
	return res
}

// print writes the result in the version that the runtime asked for. The MTU
// of an interface came with 1.1.0.
func (r *run) print(res *result) error {
	if ok, err := version.GreaterThanOrEqualTo(r.conf.CNIVersion, "1.1.0"); err != nil || !ok {
		for _, i := range res.Interfaces {
			i.Mtu = 0
		}
	}
	out, err := res.GetAsVersion(r.conf.CNIVersion)
	if err != nil {
		return fmt.Errorf("write the result as CNI %s: %w", r.conf.CNIVersion, err)
	}
	return out.PrintTo(r.stdout)
}

// readPrevResult reads the result of ADD that a runtime passes to CHECK.
func readPrevResult(c *NetConf) (*result, error) {
	if !c.hasPrevResult() {
		return nil, badConfig("field prevResult: CHECK needs the result of ADD")
	}
	var raw map[string]any
	if err := json.Unmarshal(c.PrevResult, &raw); err != nil {
		return nil, badConfig("field prevResult: must be an object")
	}
	conf := &types.PluginConf{CNIVersion: c.CNIVersion, RawPrevResult: raw}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, badConfig("field prevResult: %v", err)
	}
	res, err := types100.GetResult(conf.PrevResult)
	if err != nil {
		return nil, badConfig("field prevResult: %v", err)
	}
	return res, nil
}
