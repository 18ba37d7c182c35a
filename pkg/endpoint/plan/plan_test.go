package plan

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirnet/weir/pkg/endpoint/regeneration"
	"github.com/weirnet/weir/pkg/types"
)

var base = Layout{ID: 7, Identity: 1001, IfIndex: 12, MAC: types.MAC{2, 1}, IPv4: netip.MustParseAddr("10.0.0.7")}

func with(f func(*Layout)) *Layout {
	l := base
	f(&l)
	return &l
}

func TestBuild(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Input
		want []string
	}{
		{"the first build does everything, policy before attach, attach before expose",
			Input{Level: regeneration.LevelLoad, Desired: base},
			[]string{"load (first build)", "policy.swap (first build)", "attach (first build)", "expose (first build)"}},
		{"a first build asked for as policy only still does everything",
			Input{Level: regeneration.LevelPolicy, Desired: base},
			[]string{"load (first build)", "policy.swap (first build)", "attach (first build)", "expose (first build)"}},
		{"nothing changed, nothing to do",
			Input{Level: regeneration.LevelPolicy, Realized: &base, Desired: base}, nil},
		{"a changed policy touches no program",
			Input{Level: regeneration.LevelPolicy, Realized: &base, Desired: base, PolicyDiffers: true},
			[]string{"policy.swap (policy changed)"}},
		{"a new identity loads again",
			Input{Level: regeneration.LevelPolicy, Realized: with(func(l *Layout) { l.Identity = 9 }), Desired: base},
			[]string{"load (identity changed)", "policy.swap (identity changed)", "attach (identity changed)", "expose (identity changed)"}},
		{"a new address loads again but keeps the policy",
			Input{Level: regeneration.LevelPolicy, Realized: with(func(l *Layout) { l.IPv4 = netip.Addr{}; l.MAC[0] = 4 }), Desired: base},
			[]string{"load (MAC address, IPv4 address changed)", "attach (MAC address, IPv4 address changed)", "expose (MAC address, IPv4 address changed)"}},
		{"a load that was asked for",
			Input{Level: regeneration.LevelLoad, Realized: &base, Desired: base},
			[]string{"load (asked for)", "attach (asked for)", "expose (asked for)"}},
		{"another prefix identity only rewrites the entry",
			Input{Level: regeneration.LevelPolicy, Realized: &base, Desired: base, PrefixIdentityDiffers: true},
			[]string{"expose (prefix identity changed)"}},
		{"redirects come first",
			Input{Level: regeneration.LevelPolicy, Realized: &base, Desired: base, PolicyDiffers: true, Redirects: 2},
			[]string{"redirect (2 proxy redirects changed)", "policy.swap (policy changed)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, s := range Build(c.in) {
				got = append(got, s.String())
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestStepsKeepTheOrderOfTheStations(t *testing.T) {
	at := map[regeneration.Station]int{}
	for i, s := range regeneration.Stations() {
		at[s] = i
	}
	rapid.Check(t, func(t *rapid.T) {
		in := Input{
			Level:                 regeneration.Level(rapid.IntRange(0, 2).Draw(t, "level")),
			Desired:               base,
			PolicyDiffers:         rapid.Bool().Draw(t, "policy"),
			PrefixIdentityDiffers: rapid.Bool().Draw(t, "prefix"),
			Redirects:             rapid.IntRange(0, 1).Draw(t, "redirects"),
		}
		if rapid.Bool().Draw(t, "built") {
			r := base
			if rapid.Bool().Draw(t, "other identity") {
				r.Identity = 5
			}
			in.Realized = &r
		}
		last, load, attach := -1, false, false
		for _, s := range Build(in) {
			if at[s.Station] <= last {
				t.Fatalf("%s is out of order", s)
			}
			last = at[s.Station]
			load = load || s.Station == regeneration.StationLoad
			attach = attach || s.Station == regeneration.StationAttach
		}
		if load != attach {
			t.Fatal("programs were loaded and not attached, or the other way round")
		}
	})
}

func TestTeardownTakesTheMapEntryFirstAndTheRecordAfterTheKernel(t *testing.T) {
	steps := Teardown()
	at := map[Undo]int{}
	for i, s := range steps {
		at[s] = i
	}
	require.Len(t, at, len(steps))
	require.Equal(t, UndoEndpointMap, steps[0])
	for _, s := range []Undo{UndoIPCache, UndoLink, UndoAttach, UndoPolicy, UndoConntrack} {
		require.Less(t, at[s], at[UndoRecord], "%s must be gone before the record is", s)
	}
	require.Less(t, at[UndoLink], at[UndoAttach], "no packet passes a link without programs")
	require.Less(t, at[UndoRecord], at[UndoNumber])
	require.Less(t, at[UndoIPCache], at[UndoIdentity])
	require.Equal(t, []netip.Addr{base.IPv4}, base.Addrs())
}
