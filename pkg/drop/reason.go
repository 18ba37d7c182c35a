package drop

import (
	"fmt"
)

// Reason says why a packet was dropped, as in enum drop_reason of
// bpf/lib/drop_reasons.h. The zero value, Forwarded, means that it was not.
type Reason uint8

const (
	// Forwarded counts packets that passed.
	Forwarded Reason = 0
	// EventLost is no drop: it counts events that found no room in the ring.
	EventLost Reason = 255
	// EventLeftOut is no drop: it counts events beyond an endpoint's share of the ring.
	EventLeftOut Reason = 254
)

// text is what people read of a reason.
type text struct{ name, explain string }

// String prints the short name, or "reason 17" for a number that is not known.
func (r Reason) String() string {
	switch r {
	case Forwarded:
		return "forwarded"
	case EventLost:
		return "event-lost"
	case EventLeftOut:
		return "event-left-out"
	}
	if t, ok := texts[r]; ok {
		return t.name
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Explain says what happened and what to try next.
func (r Reason) Explain() string {
	switch r {
	case Forwarded:
		return "The packet passed."
	case EventLost:
		return "The event ring was full, so a verdict or drop was counted but not told. Raise the ring's size or lower the number of new connections."
	case EventLeftOut:
		return "An endpoint told of more drops or new connections than its share of the event ring, so this one was counted but not told. `weir monitor` names the endpoint."
	}
	if t, ok := texts[r]; ok {
		return t.explain
	}
	return "The number is not known here. Compare the versions of agent and command with `weir version`."
}

// IsPolicy reports whether a policy decided, so that a rule number goes with it.
func (r Reason) IsPolicy() bool { return r == Policy || r == PolicyDeny }
