package loader

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/weirnet/weir/pkg/types"
)

// constantSection holds every load-time constant and nothing else.
const constantSection = ".rodata.config"

// required constants are in every object; the others may be missing from one
// that was compiled without the address family they belong to.
var required = []string{"weir_endpoint_id", "weir_identity"}

// constants lays the values of an endpoint out as they lie in memory: numbers
// in host order, addresses and MACs in network order. No address is all zero.
func constants(e Endpoint) map[string][]byte {
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	return map[string][]byte{
		"weir_endpoint_id": u32(uint32(e.ID)),
		"weir_identity":    u32(e.Identity),
		"weir_ifindex":     u32(e.IfIndex),
		"weir_ipv4":        addressBytes(e.IPv4, 4),
		"weir_ipv6":        addressBytes(e.IPv6, 16),
		"weir_mac":         macBytes(e.MAC),
		"weir_node_mac":    macBytes(e.NodeMAC),
	}
}

func addressBytes(a netip.Addr, size int) []byte {
	if !a.IsValid() {
		return make([]byte, size)
	}
	return a.Unmap().AsSlice()
}

func macBytes(m types.MAC) []byte { return slices.Clone(m[:]) }

// substitute writes the endpoint's values over the template's in spec. It
// fails if the object declares a constant that the loader does not know, since
// that one would keep the template's value.
func substitute(spec *ebpf.CollectionSpec, e Endpoint) error {
	values := constants(e)
	for name, v := range spec.Variables {
		if v.SectionName != constantSection {
			continue
		}
		value, known := values[name]
		if !known {
			return fmt.Errorf("the object declares the constant %s, which this loader does not know: agent and BPF sources are of different versions", name)
		}
		if n := int(v.Size()); n > len(value) && strings.HasSuffix(name, "mac") {
			value = append(value, make([]byte, n-len(value))...)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("write the constant %s (%d bytes): %w", name, len(value), err)
		}
	}
	for _, name := range required {
		if v := spec.Variables[name]; v == nil || v.SectionName != constantSection {
			return fmt.Errorf("the object lacks the constant %s in section %s: agent and BPF sources are of different versions", name, constantSection)
		}
	}
	return nil
}
