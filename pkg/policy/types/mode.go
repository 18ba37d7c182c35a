package types

import (
	"fmt"
	"strings"

	"github.com/weirnet/weir/pkg/types"
)

// Mode says when a pod is held to its policies.
type Mode uint8

const (
	// ModeDefault isolates a pod in a direction once a policy asks for it.
	ModeDefault Mode = iota
	// ModeAlways isolates every pod in both directions.
	ModeAlways
	// ModeNever allows everything; rules are not looked at.
	ModeNever
)

// ParseMode reads "default", "always" or "never" in any case.
func ParseMode(s string) (Mode, error) {
	for m := ModeDefault; m <= ModeNever; m++ {
		if strings.EqualFold(s, m.String()) {
			return m, nil
		}
	}
	return 0, fmt.Errorf("enforcement mode %q is not known; give default, always or never", s)
}

// String prints "default", "always" or "never".
func (m Mode) String() string {
	switch m {
	case ModeAlways:
		return "always"
	case ModeNever:
		return "never"
	}
	return "default"
}

// Enforcement is the mode of one endpoint: that of the node, or one of its own.
type Enforcement uint8

// EnforcementNode follows the node's mode. The others are those of EnforcementOf.
const EnforcementNode Enforcement = 0

// EnforcementOf is a mode that an endpoint has whatever the node's is.
func EnforcementOf(m Mode) Enforcement { return Enforcement(m) + 1 }

// ParseEnforcement reads "node", "default", "always" or "never" in any case.
func ParseEnforcement(s string) (Enforcement, error) {
	for e := EnforcementNode; e <= EnforcementOf(ModeNever); e++ {
		if strings.EqualFold(s, e.String()) {
			return e, nil
		}
	}
	return 0, fmt.Errorf("enforcement %q of an endpoint is not known; give node, default, always or never", s)
}

// Own returns the endpoint's own mode; false: it has that of the node.
func (e Enforcement) Own() (m Mode, own bool) {
	if e == EnforcementNode {
		return ModeDefault, false
	}
	return Mode(e - 1), true
}

// String prints "node", or the mode.
func (e Enforcement) String() string {
	if m, own := e.Own(); own {
		return m.String()
	}
	return "node"
}

// MarshalText prints what ParseEnforcement reads.
func (e Enforcement) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText is ParseEnforcement.
func (e *Enforcement) UnmarshalText(text []byte) (err error) {
	*e, err = ParseEnforcement(string(text))
	return err
}

// NamedPort is the name that a pod gives to a port of a protocol.
type NamedPort struct {
	Name  string
	Proto types.Proto
}

// String prints "http/TCP".
func (n NamedPort) String() string { return n.Name + "/" + n.Proto.String() }

// NamedPorts are a pod's named container ports. nil: the pod names none.
type NamedPorts map[NamedPort]uint16
