package types

import (
	"fmt"
	"net"
)

// MAC is an IEEE 802 EUI-48 hardware address in transmission order.
// The zero value means "no address known".
type MAC [6]byte

// ParseMAC reads the forms that net.ParseMAC accepts and refuses every
// length but 6 bytes.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, fmt.Errorf("hardware address %q: %w", s, err)
	}
	if len(hw) != 6 {
		return MAC{}, fmt.Errorf("hardware address %q has %d bytes; give an EUI-48 of 6 bytes", s, len(hw))
	}
	return MAC(hw), nil
}

// String prints colon-separated lower-case hexadecimal, or "" for the zero value.
func (m MAC) String() string {
	if m.IsZero() {
		return ""
	}
	return net.HardwareAddr(m[:]).String()
}

// IsZero reports whether no address is known.
func (m MAC) IsZero() bool { return m == MAC{} }

// MarshalText writes the form of String.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the form of String; empty text is the zero value.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	v, err := ParseMAC(string(b))
	if err != nil {
		return err
	}
	*m = v
	return nil
}
