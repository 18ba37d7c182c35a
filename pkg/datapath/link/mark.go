package link

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weirnet/weir/pkg/types"
)

const (
	markWord = "weir" // starts the alias of every host side of ours
	maxAlias = 255    // characters that the kernel keeps (IFALIASZ less one)
)

// Mark is what a host side says of itself in its alias: that it is ours, and what
// is needed to know it again without a record. All fields may be empty.
type Mark struct {
	Endpoint  uint16 // 0: no endpoint has it yet
	Container string
	Interface string // in the pod
	PodMAC    types.MAC
	Network   string // of CNI
	UID       string // of the pod
	Namespace string
	Pod       string
}

// String is the alias. What does not fit, or holds a blank, is left out; the
// first fields go before the last.
func (m Mark) String() string {
	s := markWord
	add := func(key, value string) {
		if value != "" && !strings.ContainsAny(value, " \n\t\x00") && len(s)+len(key)+len(value)+2 <= maxAlias {
			s += " " + key + "=" + value
		}
	}
	if m.Endpoint != 0 {
		add("id", strconv.Itoa(int(m.Endpoint)))
	}
	add("c", m.Container)
	add("if", m.Interface)
	if !m.PodMAC.IsZero() {
		add("mac", m.PodMAC.String())
	}
	add("net", m.Network)
	add("uid", m.UID)
	if m.Namespace != "" && m.Pod != "" {
		add("pod", m.Namespace+"/"+m.Pod)
	}
	return s
}

// ParseMark reads an alias; false: it is none of ours. Words that are not known are
// passed over.
func ParseMark(alias string) (m Mark, ours bool) {
	words := strings.Fields(alias)
	if len(words) == 0 || words[0] != markWord {
		return Mark{}, false
	}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "id":
			n, err := strconv.ParseUint(value, 10, 16)
			if err == nil {
				m.Endpoint = uint16(n)
			}
		case "c":
			m.Container = value
		case "if":
			m.Interface = value
		case "mac":
			if mac, err := types.ParseMAC(value); err == nil {
				m.PodMAC = mac
			}
		case "net":
			m.Network = value
		case "uid":
			m.UID = value
		case "pod":
			m.Namespace, m.Pod, _ = strings.Cut(value, "/")
		}
	}
	return m, true
}

// SetMark writes the mark of a host side.
func SetMark(index int, m Mark) error {
	if err := netlink.LinkSetAlias(byIndex(index), m.String()); err != nil {
		return fmt.Errorf("mark link %d: %w", index, found(err))
	}
	return nil
}
