package loader

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weirnet/weir/pkg/types"
)

// Endpoint holds the values that are written into an endpoint's entry programs.
type Endpoint struct {
	ID       uint16     // 1 to 65534; 65535 is the template's
	Identity uint32     // numeric security identity
	MAC      types.MAC  // inside the pod
	NodeMAC  types.MAC  // host side of the veth
	IPv4     netip.Addr // the zero Addr: none
	IPv6     netip.Addr // the zero Addr: none
	IfIndex  uint32     // host side of the veth
}

// configuration is all that the loader is told about one endpoint: the shape
// decides the object, the rest are constants.
type configuration struct {
	Shape
	Endpoint
}

// templateCfg is a configuration as the compiler and the hash see it: the
// shape passes through, the endpoint's data are replaced by harmless values.
type templateCfg struct{ configuration }

// wrap hides the endpoint's data behind those of the template.
func wrap(cfg configuration) templateCfg {
	cfg.Endpoint = templateEndpoint()
	return templateCfg{cfg}
}

// templateEndpoint holds the values that an object carries before
// substitution; bpf/lib/config.h declares the same ones as defaults, which a
// test compares.
//
// They are harmless should a template ever reach an interface: the id belongs
// to no endpoint, the identity is reserved:world (the least trusted one), the
// addresses are for documentation (RFC 5737, RFC 3849), the MACs are locally
// administered. And no 32-bit word of any of them is zero: a compiler may put
// zero-initialised data into .bss, where nothing could be substituted. A MAC
// occupies 8 bytes of the section, 6 of them significant; both its words hold
// significant non-zero bytes.
func templateEndpoint() Endpoint {
	return Endpoint{
		ID:       65535,
		Identity: 2,
		MAC:      types.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x01},
		NodeMAC:  types.MAC{0x02, 0x00, 0x5e, 0x00, 0x53, 0x02},
		IPv4:     netip.AddrFrom4([4]byte{192, 0, 2, 3}),
		IPv6:     netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666"),
		IfIndex:  0xffffffff,
	}
}

// check refuses an endpoint whose values would leave the template's or none in place.
func (c configuration) check() error {
	if err := c.Shape.check(); err != nil {
		return err
	}
	template := templateEndpoint()
	e := c.Endpoint
	switch {
	case e.ID == 0 || e.ID == template.ID:
		return fmt.Errorf("endpoint id %d is not of an endpoint: give 1 to 65534", e.ID)
	case e.Identity == 0:
		return errors.New("identity 0 means unknown: wait until the endpoint has one")
	case e.MAC.IsZero() || e.NodeMAC.IsZero():
		return errors.New("both hardware addresses of the veth must be known: look the link up first")
	case e.IfIndex == 0 || e.IfIndex == template.IfIndex:
		return fmt.Errorf("interface index %d is not of a link: look the link up first", e.IfIndex)
	case e.IPv4.IsValid() && !e.IPv4.Unmap().Is4():
		return fmt.Errorf("%s is not an IPv4 address", e.IPv4)
	case e.IPv6.IsValid() && (!e.IPv6.Is6() || e.IPv6.Is4In6()):
		return fmt.Errorf("%s is not an IPv6 address", e.IPv6)
	}
	return nil
}
