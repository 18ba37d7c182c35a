package suggest_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirnet/weir/api/v1/gen"
	"github.com/weirnet/weir/pkg/policy/suggest"
	wtypes "github.com/weirnet/weir/pkg/types"
)

// FuzzFrom takes lines as a recording may hold them. Whatever is suggested for
// them can be read and is in force as a policy; there is no third between that
// and an error.
func FuzzFrom(f *testing.F) {
	line := func(e gen.Event) []byte {
		text, err := json.Marshal(e)
		require.NoError(f, err)
		return append(text, '\n')
	}
	web, outside := podActor(0, "x", map[string]string{"app": "web"}), others()[0]
	var all []byte
	for _, k := range []talk{{outside, web, wtypes.ProtoTCP, 80}, {web, outside, wtypes.ProtoICMP, 8}, {web, podActor(1, "y", nil), wtypes.ProtoSCTP, 9}} {
		for _, dir := range []gen.Direction{gen.DirectionIngress, gen.DirectionEgress} {
			e := line(k.event(dir, gen.VerdictAllow))
			f.Add(e)
			all = append(all, e...)
		}
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, text []byte) {
		var events []gen.Event
		for part := range bytes.Lines(text) {
			var e gen.Event
			if json.Unmarshal(part, &e) == nil {
				events = append(events, e)
			}
		}
		r, err := suggest.From(events, suggest.Options{})
		if err != nil {
			require.Empty(t, r)
			return
		}
		translate(t, r.Objects)
	})
}
