package regeneration

// State is where an endpoint stands. The text form is used in the API.
type State string

// The states, in the order of a healthy life.
const (
	StateNone                State = "" // before creation
	StateRestoring           State = "restoring"
	StateWaitingForIdentity  State = "waiting-for-identity"
	StateWaitingToRegenerate State = "waiting-to-regenerate"
	StateRegenerating        State = "regenerating"
	StateReady               State = "ready"
	StateDisconnecting       State = "disconnecting"
	StateDisconnected        State = "disconnected"
	StateInvalid             State = "invalid"
)

// States lists every state but StateNone.
func States() []State {
	return []State{
		StateRestoring, StateWaitingForIdentity, StateWaitingToRegenerate, StateRegenerating,
		StateReady, StateDisconnecting, StateDisconnected, StateInvalid,
	}
}

// transitions is the whole state machine: from each state, the states that may follow.
var transitions = map[State][]State{
	StateNone:                {StateWaitingForIdentity, StateRestoring, StateInvalid},
	StateRestoring:           {StateRegenerating, StateDisconnecting},
	StateWaitingForIdentity:  {StateWaitingToRegenerate, StateDisconnecting},
	StateWaitingToRegenerate: {StateRegenerating, StateWaitingForIdentity, StateDisconnecting},
	StateRegenerating:        {StateReady, StateWaitingToRegenerate, StateWaitingForIdentity, StateDisconnecting},
	StateReady:               {StateWaitingToRegenerate, StateWaitingForIdentity, StateDisconnecting},
	StateDisconnecting:       {StateDisconnected},
	StateDisconnected:        nil,
	StateInvalid:             nil,
}

// Allowed reports whether an endpoint may go from one state to the other.
// A state never follows itself.
func Allowed(from, to State) bool {
	for _, s := range transitions[from] {
		if s == to {
			return true
		}
	}
	return false
}

// Terminal reports whether nothing follows the state.
func (s State) Terminal() bool { return s == StateDisconnected || s == StateInvalid }

// Alive reports whether the endpoint's state may still be changed by its users.
func (s State) Alive() bool {
	return s != StateNone && s != StateDisconnecting && !s.Terminal()
}
