package regeneration

// Level says how much of an endpoint a regeneration renews. Requests merge to
// the highest level asked for.
type Level uint8

const (
	// LevelPolicy renews the policy map only.
	LevelPolicy Level = iota + 1
	// LevelLoad also substitutes constants, loads and attaches programs again.
	LevelLoad
)

// String prints "policy" or "load".
func (l Level) String() string {
	switch l {
	case LevelPolicy:
		return "policy"
	case LevelLoad:
		return "load"
	}
	return "none"
}

// Max returns the higher of two levels.
func Max(a, b Level) Level { return max(a, b) }
