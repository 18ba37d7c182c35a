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

// NamedPort is the name that a pod gives to a port of a protocol.
type NamedPort struct {
	Name  string
	Proto types.Proto
}

// String prints "http/TCP".
func (n NamedPort) String() string { return n.Name + "/" + n.Proto.String() }

// NamedPorts are a pod's named container ports. nil: the pod names none.
type NamedPorts map[NamedPort]uint16
