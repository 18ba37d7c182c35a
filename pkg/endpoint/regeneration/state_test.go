package regeneration

import (
	"strings"
	"testing"
)

// allowed is the table of the design, written a second time and another way.
const allowed = `
>restoring >waiting-for-identity >invalid
restoring>regenerating restoring>disconnecting
waiting-for-identity>waiting-to-regenerate waiting-for-identity>disconnecting
waiting-to-regenerate>regenerating waiting-to-regenerate>waiting-for-identity waiting-to-regenerate>disconnecting
regenerating>ready regenerating>waiting-to-regenerate regenerating>waiting-for-identity regenerating>disconnecting
ready>waiting-to-regenerate ready>waiting-for-identity ready>disconnecting
disconnecting>disconnected
`

func TestEveryPairOfStates(t *testing.T) {
	want := map[string]bool{}
	for _, p := range strings.Fields(allowed) {
		want[p] = true
	}
	seen := 0
	all := append([]State{StateNone}, States()...)
	for _, from := range all {
		for _, to := range all {
			got := Allowed(from, to)
			if got != want[string(from)+">"+string(to)] {
				t.Errorf("%q to %q: %v", from, to, got)
			}
			if got {
				seen++
			}
			if got && from.Terminal() {
				t.Errorf("%q is terminal and yet leads to %q", from, to)
			}
		}
	}
	if seen != len(want) {
		t.Errorf("%d pairs, want %d", seen, len(want))
	}
	if Allowed("no such state", StateReady) {
		t.Error("an unknown state leads somewhere")
	}
}

func TestEveryLivingStateCanDisconnect(t *testing.T) {
	for _, s := range States() {
		if s.Alive() != Allowed(s, StateDisconnecting) {
			t.Errorf("%q: alive %v", s, s.Alive())
		}
	}
}

func TestNeverReadyWithoutABuild(t *testing.T) {
	for _, s := range append([]State{StateNone}, States()...) {
		if Allowed(s, StateReady) && s != StateRegenerating {
			t.Errorf("%q leads to ready", s)
		}
	}
}

func TestLevelsMergeToTheHigher(t *testing.T) {
	if Max(LevelPolicy, LevelLoad) != LevelLoad || Max(0, LevelPolicy) != LevelPolicy {
		t.Error("levels do not merge upwards")
	}
	if LevelPolicy.String() != "policy" || LevelLoad.String() != "load" || Level(0).String() != "none" {
		t.Error("names of levels")
	}
}

func TestStationsAreDistinct(t *testing.T) {
	seen := map[Station]bool{}
	for _, s := range Stations() {
		if seen[s] {
			t.Errorf("%s twice", s)
		}
		seen[s] = true
	}
	if len(seen) != 18 {
		t.Errorf("%d stations", len(seen))
	}
	if StationPlan.Next() != StationRedirect || Station("").Next() != StationCNIAdd || StationEvent.Next() != "" {
		t.Error("the next station is another one")
	}
}
